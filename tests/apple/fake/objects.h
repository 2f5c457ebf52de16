// The fake's Metal objects, as the fake stream sees them.
#pragma once

#import <Metal/Metal.h>

#include <functional>
#include <string>

@interface NSError (Fake)
+ (instancetype)errorWithText:(const char*)text;
@end

namespace fake {
NSError* error(const std::string& text);
struct EncoderState;
}  // namespace fake

// Memory as an allocator gives it: not cleared.
@interface FakeBuffer : NSObject <MTLBuffer> {
 @public
  char* memory;
  size_t size;
}
- (instancetype)initWithLength:(size_t)length;
@end

@interface FakeDevice : NSObject <MTLDevice>
@end

@interface FakeEncoder : NSObject <MTLComputeCommandEncoder> {
  fake::EncoderState* state;
}
// `queue` is the address of the queue that the encoder may be used on.
- (instancetype)initWithQueue:(const void*)queue;
// A dispatch of somebody else's, as PyTorch's own kernels encode them.
- (void)copyFrom:(FakeBuffer*)from to:(FakeBuffer*)to work:(const std::function<void()>&)work;
// The stream ends the encoder: everything encoded runs.
- (void)finish;
// Ends the encoder; what is encoded never runs.
- (void)drop;
@end
