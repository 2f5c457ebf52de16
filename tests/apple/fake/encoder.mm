// A compute encoder that runs dispatches as late and as out of order as a concurrent encoder may:
// what is encoded between two barriers waits for the second one and runs in a seeded order.
#import <Metal/Metal.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>

#include "kernels.h"
#include "ledger.h"
#include "objects.h"
#include "pipeline.h"
#include "queue.h"

namespace fake {

struct Binding {
  FakeBuffer* buffer = nullptr;  // held, or null for inline bytes
  uint64_t offset = 0;
  std::vector<char> bytes;
};

struct Use {
  const FakeBuffer* buffer;
  bool written, ours;
  std::string who;
};

struct EncoderState {
  const dispatch_queue_s* queue;
  bool ended = false;
  FakePipeline* pipeline = nil;  // held
  std::map<uint32_t, Binding> bindings;
  std::vector<Use> uses;  // since the last barrier
  std::vector<std::function<void()>> pending;
  std::mt19937 order{7};

  void must_be_usable(const char* what) const {
    if (!on_queue(queue)) refuse(std::string(what) + ": the encoder is used outside its queue");
    if (ended) refuse(std::string(what) + ": the encoder has ended");
  }

  void forget(uint32_t index) {
    if (const auto found = bindings.find(index); found != bindings.end()) {
      [found->second.buffer release];
      bindings.erase(found);
    }
  }

  // Two uses of the same memory, one of them a write, one of them ours: a barrier is owed.
  void note(const Use& use) {
    for (const Use& before : uses) {
      if (before.buffer == use.buffer && (before.written || use.written) &&
          (before.ours || use.ours) && before.who != use.who) {
        refuse("no barrier between " + before.who + " and " + use.who +
               ", which use the same buffer");
      }
    }
    uses.push_back(use);
  }

  void run_pending() {
    std::shuffle(pending.begin(), pending.end(), order);
    const auto all = std::move(pending);
    pending.clear();
    uses.clear();
    for (const auto& work : all) work();
  }
};

namespace {

using Grid = std::array<uint64_t, 3>;

struct Arguments {
  Arguments() = default;
  Arguments(Arguments&&) = default;
  ~Arguments() {
    for (FakeBuffer* buffer : held) [buffer release];
  }
  std::vector<Span> spans;
  std::vector<std::vector<char>> inline_bytes;
  std::vector<FakeBuffer*> held;
};

std::string at(const std::string& kernel, uint32_t index) {
  return kernel + ": buffer(" + std::to_string(index) + ")";
}

void check_binding(const std::string& name, const BufferParameter& p, const Binding& binding) {
  if (binding.buffer == nullptr) {
    if (!p.read_only) refuse(at(name, p.index) + " is written and has inline bytes bound");
    if (p.reference ? binding.bytes.size() != p.size : binding.bytes.size() % p.size != 0) {
      refuse(at(name, p.index) + " has " + std::to_string(binding.bytes.size()) +
             " inline bytes bound, of " + std::to_string(p.size));
    }
    return;
  }
  if (binding.offset % p.align != 0) refuse(at(name, p.index) + " has a misaligned offset");
  if (p.reference && binding.buffer->size - binding.offset < p.size) {
    refuse(at(name, p.index) + " is shorter than its struct");
  }
}

Arguments collect(EncoderState& state, const std::string& name, const std::string& who) {
  Arguments arguments;
  std::set<uint32_t> known;
  for (const BufferParameter& p : state.pipeline->kernel->buffers) {
    known.insert(p.index);
    if (arguments.spans.size() <= p.index) arguments.spans.resize(p.index + 1);
    const auto found = state.bindings.find(p.index);
    if (found == state.bindings.end()) {
      if (!p.optional) refuse(at(name, p.index) + " has nothing bound");
      continue;
    }
    const Binding& binding = found->second;
    check_binding(name, p, binding);
    if (binding.buffer == nullptr) {
      arguments.inline_bytes.push_back(binding.bytes);
      auto& kept = arguments.inline_bytes.back();
      arguments.spans[p.index] = {kept.data(), kept.size()};
    } else {
      state.note({binding.buffer, !p.read_only, true, who});
      arguments.held.push_back([binding.buffer retain]);
      arguments.spans[p.index] = {binding.buffer->memory + binding.offset,
                                  binding.buffer->size - binding.offset};
    }
  }
  for (const auto& [index, binding] : state.bindings) {
    if (known.count(index) == 0) refuse(at(name, index) + " is bound and no argument");
  }
  return arguments;
}

}  // namespace
}  // namespace fake

@implementation FakeEncoder
- (instancetype)initWithQueue:(const void*)queue {
  state = new fake::EncoderState;
  state->queue = static_cast<const dispatch_queue_s*>(queue);
  return self;
}
// Only what is bound after the pipeline counts: what an earlier dispatch left is no argument.
- (void)setComputePipelineState:(id<MTLComputePipelineState>)given {
  state->must_be_usable("setComputePipelineState");
  [given retain];
  [state->pipeline release];
  state->pipeline = (FakePipeline*)given;
  while (!state->bindings.empty()) state->forget(state->bindings.begin()->first);
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  state->must_be_usable("setBytes");
  if (length == 0 || length > 4096) {
    fake::refuse("setBytes: " + std::to_string(length) + " bytes, 1 to 4096 are allowed");
  }
  if (index >= 31) fake::refuse("setBytes: index " + std::to_string(index));
  state->forget(static_cast<uint32_t>(index));
  const auto* first = static_cast<const char*>(bytes);
  state->bindings[static_cast<uint32_t>(index)].bytes.assign(first, first + length);
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  state->must_be_usable("setBuffer");
  auto* given = (FakeBuffer*)buffer;
  if (given == nil) fake::refuse("setBuffer: nil at index " + std::to_string(index));
  if (index >= 31) fake::refuse("setBuffer: index " + std::to_string(index));
  if (offset >= given->size) {
    fake::refuse("setBuffer: offset " + std::to_string(offset) + " in a buffer of " +
                 std::to_string(given->size) + " bytes");
  }
  state->forget(static_cast<uint32_t>(index));
  state->bindings[static_cast<uint32_t>(index)] = {[given retain], offset, {}};
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
  state->must_be_usable("dispatch");
  if (state->pipeline == nil) fake::refuse("a dispatch without a pipeline");
  const std::string name = *state->pipeline->name;
  const auto* kernel = state->pipeline->kernel;
  const fake::Grid grid{groups.width, groups.height, groups.depth};
  const fake::Grid group{threads.width, threads.height, threads.depth};
  if (grid[0] * grid[1] * grid[2] == 0) fake::refuse(name + ": an empty grid");
  const uint64_t size = group[0] * group[1] * group[2];
  if (size == 0 || size > kernel->max_threads) {
    fake::refuse(name + ": a threadgroup of " + std::to_string(size) + " threads, the limit is " +
                 std::to_string(kernel->max_threads));
  }
  const std::string who =
      name + " (dispatch " + std::to_string(++fake::counters().dispatches) + ")";
  auto arguments = std::make_shared<fake::Arguments>(fake::collect(*state, name, who));
  state->pending.emplace_back([=] {
    const std::string faults = fake::run(*kernel, grid, group, arguments->spans);
    if (!faults.empty()) fake::refuse(name + ": " + faults);
  });
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  state->must_be_usable("memoryBarrier");
  if (scope != MTLBarrierScopeBuffers) fake::refuse("a barrier of another scope than buffers");
  ++fake::counters().barriers;
  state->run_pending();
}
- (void)copyFrom:(FakeBuffer*)from to:(FakeBuffer*)to work:(const std::function<void()>&)work {
  state->must_be_usable("copy");
  const std::string who = "a copy of PyTorch's";
  state->note({from, false, false, who});
  state->note({to, true, false, who});
  state->pending.emplace_back(work);
}
- (void)finish {
  try {
    state->run_pending();
  } catch (...) {
    [self drop];
    throw;
  }
  [self drop];
}
- (void)drop {
  state->pending.clear();
  state->uses.clear();
  state->ended = true;
  while (!state->bindings.empty()) state->forget(state->bindings.begin()->first);
  [state->pipeline release];
  state->pipeline = nil;
}
- (void)dealloc {
  delete state;
  [super dealloc];
}
@end
