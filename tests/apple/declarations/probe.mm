// Makes clang write down the method lists, with type encodings, of what the headers declare:
// a protocol is described where it is named, a class where it is implemented.
#import <Metal/Metal.h>
#import <MetalPerformanceShaders/MetalPerformanceShaders.h>

extern "C" void* probe(int i) {
  switch (i) {
    case 0:
      return @protocol(MTLDevice);
    case 1:
      return @protocol(MTLLibrary);
    case 2:
      return @protocol(MTLFunction);
    case 3:
      return @protocol(MTLBuffer);
    case 4:
      return @protocol(MTLComputePipelineState);
    case 5:
      return @protocol(MTLComputeCommandEncoder);
    case 6:
      return @protocol(MTLCommandBuffer);
    case 7:
      return @protocol(MTLCommandQueue);
    case 8:
      return @protocol(MTLSharedEvent);
    default:
      return nullptr;
  }
}

@implementation MTLCompileOptions
@end

@implementation MTLFunctionConstantValues
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
}
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char*)text {
  return nil;
}
@end

@implementation NSError
@end
