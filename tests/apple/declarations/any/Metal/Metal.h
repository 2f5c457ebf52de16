// Hand-written: the part of Metal that our code and torch's headers name. Not Apple's header;
// test_declarations.py holds it against published descriptions of the interface.
#pragma once
#import <Foundation/Foundation.h>
#include <dispatch/dispatch.h>

typedef struct {
  NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}

typedef enum : NSInteger { MTLMathModeSafe = 0 } MTLMathMode;
typedef enum : NSUInteger {
  MTLLanguageVersion3_1 = 196609,
  MTLLanguageVersion3_2 = 196610
} MTLLanguageVersion;
typedef enum : NSUInteger { MTLDataTypeUInt = 33, MTLDataTypeBool = 53 } MTLDataType;
typedef enum : NSUInteger { MTLBarrierScopeBuffers = 1 } MTLBarrierScope;

@protocol MTLBuffer
, MTLCommandBuffer, MTLComputeCommandEncoder, MTLDevice, MTLFunction, MTLLibrary;
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);

@interface MTLCompileOptions : NSObject
@property(readwrite, nonatomic) BOOL fastMathEnabled;
@property(readwrite, nonatomic) MTLMathMode mathMode
    __attribute__((availability(macos, introduced=15.0)));
@property(readwrite, nonatomic) MTLLanguageVersion languageVersion;
@end

@interface MTLFunctionConstantValues : NSObject
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@protocol MTLBuffer <NSObject>
@end
@protocol MTLFunction <NSObject>
@end
@protocol MTLSharedEvent <NSObject>
@end
@protocol MTLCommandQueue <NSObject>
@end
@protocol MTLCommandBuffer <NSObject>
@end

@protocol MTLLibrary <NSObject>
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)values
                                 error:(NSError**)error;
@end

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@end

@protocol MTLComputeCommandEncoder <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
@end

@protocol MTLDevice <NSObject>
@property(readonly) NSString* name;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError**)error;
@end
