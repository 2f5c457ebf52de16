// Reference counts are manual here (no ARC): what new... and alloc return is owned by us, in an
// Owned until the cache takes it; what other methods return belongs to a pool.
#include "mps/pipelines.h"

#include <c10/util/Exception.h>

#include "mps/memory.h"
#include "shader_text.h"

namespace tmf::mps {
namespace {

NSString* string(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }

std::string message(NSError* error) {
  NSString* description = error == nil ? nil : [error localizedDescription];
  return description == nil ? "Metal gave no message" : [description UTF8String];
}

void set_safe_math(MTLCompileOptions* options) {
#ifdef __MAC_15_0
  if (@available(macOS 15.0, *)) {
    options.mathMode = MTLMathModeSafe;
    return;
  }
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
  options.fastMathEnabled = NO;
#pragma clang diagnostic pop
}

void set_language(MTLCompileOptions* options, const ShaderFamily& family) {
  if (family.language <= 301) {
    options.languageVersion = MTLLanguageVersion3_1;
    return;
  }
#ifdef __MAC_15_0
  if (@available(macOS 15.0, *)) {
    options.languageVersion = MTLLanguageVersion3_2;
    return;
  }
#endif
  TORCH_CHECK_NOT_IMPLEMENTED(false, "mps_fusion: shader family '", family.name,
                              "' needs Metal 3.2, which comes with macOS 15");
}

// Every constant that the family declares gets a value; those that the kernel does not name are 0.
Owned<MTLFunctionConstantValues*> constant_values(const plan::Kernel& kernel) {
  Owned<MTLFunctionConstantValues*> values([[MTLFunctionConstantValues alloc] init]);
  for (const FunctionConstant& constant : shader_family(kernel.family).constants) {
    const auto given = kernel.constants.find(constant.id);
    const uint32_t number = given == kernel.constants.end() ? 0 : given->second;
    const bool flag = number != 0;
    [values.get() setConstantValue:constant.boolean ? static_cast<const void*>(&flag) : &number
                              type:constant.boolean ? MTLDataTypeBool : MTLDataTypeUInt
                           atIndex:constant.id];
  }
  return values;
}

// `name|fc=value,...`
std::string key_of(const plan::Kernel& kernel) {
  std::string key = kernel.family + "/" + kernel.name;
  char separator = '|';
  for (const auto& [id, value] : kernel.constants) {
    key.push_back(separator);
    key.append(std::to_string(id)).append("=").append(std::to_string(value));
    separator = ',';
  }
  return key;
}

}  // namespace

id<MTLLibrary> Pipelines::library(id<MTLDevice> device, const plan::Kernel& kernel) {
  const std::string key = kernel.family + "\n" + kernel_macros(kernel.name);
  if (const auto found = libraries_.find(key); found != libraries_.end()) return found->second;
  const Owned<MTLCompileOptions*> options([[MTLCompileOptions alloc] init]);
  set_safe_math(options.get());
  set_language(options.get(), shader_family(kernel.family));
  NSError* error = nil;
  Owned<id<MTLLibrary>> made([device newLibraryWithSource:string(specialised_text(kernel))
                                                  options:options.get()
                                                    error:&error]);
  TORCH_CHECK(made.get() != nil, "mps_fusion: shader family '", kernel.family,
              "' does not compile for ", kernel.name, ": ", message(error));
  return libraries_.emplace(key, made.give()).first->second;
}

id<MTLComputePipelineState> Pipelines::make(id<MTLDevice> device, const plan::Kernel& kernel,
                                            const std::string& key) {
  NSError* error = nil;
  const auto values = constant_values(kernel);
  const Owned<id<MTLFunction>> function([library(device, kernel)
      newFunctionWithName:string(kernel.name)
           constantValues:values.get()
                    error:&error]);
  TORCH_CHECK(function.get() != nil, "mps_fusion: shader family '", kernel.family,
              "' has no kernel ", key, ": ", message(error));
  Owned<id<MTLComputePipelineState>> made([device newComputePipelineStateWithFunction:function.get()
                                                                                error:&error]);
  TORCH_CHECK(made.get() != nil, "mps_fusion: no pipeline for ", key, ": ", message(error));
  return pipelines_.emplace(key, made.give()).first->second;
}

id<MTLComputePipelineState> Pipelines::get(id<MTLDevice> device, const plan::Kernel& kernel) {
  const std::string key = key_of(kernel);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = pipelines_.find(key); found != pipelines_.end()) return found->second;
  id<MTLComputePipelineState> pipeline = nil;
  in_pool([&] { pipeline = make(device, kernel, key); });
  return pipeline;
}

}  // namespace tmf::mps
