// Hand-written: the part of Foundation that our code and torch's headers name. Not Apple's header.
#pragma once
#ifdef __APPLE__
#include <Availability.h>
#include <TargetConditionals.h>
#include <dispatch/dispatch.h>
#include <objc/NSObjCRuntime.h>
#include <objc/NSObject.h>
#include <sys/param.h>
#else
#include <dispatch/dispatch.h>
#include <objc/objc.h>

#include <cstdint>
typedef long NSInteger;
typedef unsigned long NSUInteger;
@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
@end
__attribute__((objc_root_class))
@interface NSObject<NSObject> {
  Class isa;
  void* data;  // what a subclass keeps: this runtime's classes have no hidden variables
}
+ (instancetype)alloc;
- (instancetype)init;
- (void)dealloc;
@end
@interface NSAutoreleasePool : NSObject
- (void)drain;
@end
#endif
@class NSString, NSError, NSDictionary;
typedef struct _NSZone NSZone;
typedef double NSTimeInterval;
@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char*)text;
@property(readonly) const char* UTF8String;
@end
@interface NSError : NSObject
@property(readonly, copy) NSString* localizedDescription;
@end
@interface NSDictionary : NSObject
@end
