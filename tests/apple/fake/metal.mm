// Metal's device, library, function and pipeline. A library is a text that metal_host compiled.
#import <Metal/Metal.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "kernels.h"
#include "ledger.h"
#include "objects.h"
#include "pipeline.h"

namespace fake {
namespace {
std::atomic<int> failing_pipelines{0}, compile_milliseconds{0};
std::atomic<uint64_t> working_set{uint64_t{48} << 30};
}  // namespace

// What a test sets.
extern "C" __attribute__((visibility("default"))) void fake_fail_pipelines(int count) {
  failing_pipelines = count;
}
extern "C" __attribute__((visibility("default"))) void fake_working_set(uint64_t bytes) {
  working_set = bytes;
}
extern "C" __attribute__((visibility("default"))) void fake_compile_time(int milliseconds) {
  compile_milliseconds = milliseconds;
}
}  // namespace fake

@implementation FakeBuffer
- (instancetype)initWithLength:(size_t)length {
  size = length;
  memory = static_cast<char*>(aligned_alloc(4096, (length + 4096) & ~size_t{4095}));
  memset(memory, 0xA5, length);
  return self;
}
- (void)dealloc {
  free(memory);
  [super dealloc];
}
@end

namespace fake {
namespace {
struct Options {
  bool fast = true;  // Metal's default
  NSUInteger language = 0;
};
using Values = std::map<uint32_t, std::pair<bool, uint32_t>>;  // by id: whether bool, the value
}  // namespace
}  // namespace fake

@implementation MTLCompileOptions
- (instancetype)init {
  data = new fake::Options;
  return self;
}
- (fake::Options*)fake {
  return static_cast<fake::Options*>(data);
}
- (BOOL)fastMathEnabled {
  return [self fake]->fast;
}
- (void)setFastMathEnabled:(BOOL)enabled {
  [self fake]->fast = enabled;
}
- (MTLMathMode)mathMode {
  return static_cast<MTLMathMode>([self fake]->fast ? 2 : 0);
}
- (void)setMathMode:(MTLMathMode)mode {
  [self fake]->fast = mode != MTLMathModeSafe;
}
- (MTLLanguageVersion)languageVersion {
  return static_cast<MTLLanguageVersion>([self fake]->language);
}
- (void)setLanguageVersion:(MTLLanguageVersion)version {
  [self fake]->language = version;
}
- (void)dealloc {
  delete[self fake];
  [super dealloc];
}
@end

@implementation MTLFunctionConstantValues
- (instancetype)init {
  data = new fake::Values;
  return self;
}
- (fake::Values*)fake {
  return static_cast<fake::Values*>(data);
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  const bool boolean = type == MTLDataTypeBool;
  if (!boolean && type != MTLDataTypeUInt) fake::refuse("a constant of another type");
  (*[self fake])[static_cast<uint32_t>(index)] = {
      boolean, boolean ? *static_cast<const bool*>(value) : *static_cast<const uint32_t*>(value)};
}
- (void)dealloc {
  delete[self fake];
  [super dealloc];
}
@end

@implementation FakeFunction
- (instancetype)initWithKernel:(const fake::CompiledKernel*)made name:(const std::string&)given {
  kernel = made;
  name = new std::string(given);
  return self;
}
- (void)dealloc {
  delete name;
  [super dealloc];
}
@end

@implementation FakePipeline
- (instancetype)initWithFunction:(FakeFunction*)function {
  kernel = function->kernel;
  name = new std::string(*function->name);
  return self;
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return kernel->max_threads;
}
- (void)dealloc {
  delete name;
  [super dealloc];
}
@end

@interface FakeLibrary : NSObject <MTLLibrary> {
  std::string* text;
  uint32_t language;
}
- (instancetype)initWithText:(const std::string&)given language:(uint32_t)version;
@end

@implementation FakeLibrary
- (instancetype)initWithText:(const std::string&)given language:(uint32_t)version {
  text = new std::string(given);
  language = version;
  return self;
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)values
                                 error:(NSError**)error {
  const std::string called = [name UTF8String];
  fake::Constants chosen;
  const fake::Values& given = *[values fake];
  for (const auto& [number, boolean] : fake::declared_constants(*text)) {
    const auto found = given.find(number);
    if (found == given.end() || found->second.first != boolean) {
      *error = fake::error(called + ": function constant " + std::to_string(number) +
                           " has no value of its type");
      return nil;
    }
    chosen[number] = found->second.second;
  }
  try {
    const auto& kernels = fake::compile(*text, chosen, language);
    if (const auto found = kernels.find(called); found != kernels.end()) {
      return [[FakeFunction alloc] initWithKernel:&found->second name:called];
    }
    *error = fake::error("there is no function " + called);
  } catch (const std::exception& failure) {
    *error = fake::error(failure.what());
  }
  return nil;
}
- (void)dealloc {
  delete text;
  [super dealloc];
}
@end

@implementation FakeDevice
- (NSString*)name {
  return [NSString stringWithUTF8String:"Apple M1 Max"];
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return fake::working_set;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error {
  if (options == nil || [options fastMathEnabled]) fake::refuse("a library with fast math");
  const NSUInteger version = [options languageVersion];
  if (version != MTLLanguageVersion3_1 && version != MTLLanguageVersion3_2) {
    fake::refuse("a library of language version " + std::to_string(version));
  }
  ++fake::counters().libraries;
  std::this_thread::sleep_for(std::chrono::milliseconds(fake::compile_milliseconds));
  const std::string text = [source UTF8String];
  const uint32_t language = version == MTLLanguageVersion3_1 ? 310 : 320;
  fake::Constants off;
  for (const auto& [number, boolean] : fake::declared_constants(text)) off[number] = 0;
  try {
    fake::compile(text, off, language);
    return [[FakeLibrary alloc] initWithText:text language:language];
  } catch (const std::exception& failure) {
    *error = fake::error(failure.what());
    return nil;
  }
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError**)error {
  if (fake::failing_pipelines > 0) {
    --fake::failing_pipelines;
    *error = fake::error("the device says no to this pipeline");
    return nil;
  }
  ++fake::counters().pipelines;
  return [[FakePipeline alloc] initWithFunction:(FakeFunction*)function];
}
@end
