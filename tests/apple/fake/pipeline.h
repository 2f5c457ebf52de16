// Function and pipeline of the fake: a kernel that metal_host compiled.
#pragma once

#import <Metal/Metal.h>

#include <string>

#include "kernels.h"

@interface FakeFunction : NSObject <MTLFunction> {
 @public
  const fake::CompiledKernel* kernel;
  std::string* name;
}
- (instancetype)initWithKernel:(const fake::CompiledKernel*)made name:(const std::string&)given;
@end

@interface FakePipeline : NSObject <MTLComputePipelineState> {
 @public
  const fake::CompiledKernel* kernel;
  std::string* name;
}
- (instancetype)initWithFunction:(FakeFunction*)function;
@end
