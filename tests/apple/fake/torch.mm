// torch's side of the fake device: the at::mps symbols that the extension uses, an allocator, and
// enough operators for tensors on "mps". All other operators run on the CPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/mps/MPSStream.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "ledger.h"
#include "objects.h"
#include "queue.h"

namespace at::mps {

MPSStream::MPSStream(Stream stream) : _stream(stream), _serialQueue(new dispatch_queue_s) {}
MPSStream::~MPSStream() = default;

MTLComputeCommandEncoder_t MPSStream::commandEncoder() {
  if (!fake::on_queue(_serialQueue)) fake::refuse("commandEncoder() outside the stream's queue");
  if (_commandEncoder == nil) _commandEncoder = [[FakeEncoder alloc] initWithQueue:_serialQueue];
  return _commandEncoder;
}

MTLDevice_t MPSStream::device() const {
  static FakeDevice* device = [[FakeDevice alloc] init];
  return device;
}

// The stream's encoder is the stream's to end: nobody else calls this for kernels.
void MPSStream::endKernelCoalescing() { fake::refuse("endKernelCoalescing() is for graphs only"); }

// As PyTorch waits for the device. Without a commit, what is encoded is dropped: a test's reset.
void MPSStream::synchronize(SyncType type) {
  auto* encoder = (FakeEncoder*)std::exchange(_commandEncoder, nil);
  std::exception_ptr failure;
  try {
    type == SyncType::NONE ? [encoder drop] : [encoder finish];
  } catch (...) {
    failure = std::current_exception();
  }
  [encoder release];
  if (failure) std::rethrow_exception(failure);
}

MPSStream* getCurrentMPSStream() {
  static auto* stream = new MPSStream(c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kMPS, 0)));
  return stream;
}

void dispatch_sync_with_rethrow(dispatch_queue_t queue, void (^block)()) {
  if (fake::on_queue(queue)) fake::refuse("dispatch_sync on the queue that one is on: a deadlock");
  const std::lock_guard<std::mutex> lock(queue->mutex);
  const int pools = fake::open_pools();
  queue->owner = std::this_thread::get_id();
  std::exception_ptr failure;
  try {
    block();
  } catch (...) {
    failure = std::current_exception();
  }
  queue->owner = std::thread::id();
  if (fake::open_pools() != pools) fake::fault("a pool was left open by the block");
  if (failure) std::rethrow_exception(failure);
}

}  // namespace at::mps

namespace fake {
namespace {

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    FakeBuffer* buffer = [[FakeBuffer alloc] initWithLength:bytes];
    return {buffer, buffer, [](void* p) { [(FakeBuffer*)p release]; }, c10::Device(c10::kMPS, 0)};
  }
  void copy_data(void*, const void*, size_t) const override { refuse("copy_data"); }
} allocator;

void synchronize();

// PyTorch's device has one stream; a test may say that another one is current.
int64_t current_stream = 0;
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::MPS> {
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize(); }
};
C10_REGISTER_GUARD_IMPL(MPS, Guard)
constexpr c10::DispatchKeySet keys(c10::DispatchKey::MPS);

FakeBuffer* buffer_of(const at::Tensor& t) {
  return (FakeBuffer*)const_cast<void*>(t.storage().data());
}

// Everything that has been encoded runs, as it does before the host looks at memory.
void end_encoder(at::mps::SyncType type) {
  at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    stream->synchronize(type);
  });
}
void synchronize() { end_encoder(at::mps::SyncType::COMMIT_AND_WAIT); }
// After a mutant: what is encoded is dropped, and the pools that an exception left open drained.
void reset() {
  end_encoder(at::mps::SyncType::NONE);
  close_pools(0);
}

at::Tensor on_cpu(const at::Tensor& t) {
  if (!t.is_mps()) return t;
  char* first = buffer_of(t)->memory + t.storage_offset() * t.element_size();
  return at::from_blob(first, t.sizes(), t.strides(), t.options().device(at::kCPU));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, keys, type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, keys,
                                           type.value_or(at::kFloat));
}

// Between two tensors on "mps" a copy is a dispatch of the stream's encoder, as PyTorch's are.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  if (!self.is_mps() || !source.is_mps()) {
    synchronize();
    on_cpu(self).copy_(on_cpu(source));
    return self;
  }
  at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    const at::Tensor to = self, from = source;
    [(FakeEncoder*)stream->commandEncoder()
        copyFrom:buffer_of(from)
              to:buffer_of(to)
            work:[to, from] { on_cpu(to).copy_(on_cpu(from)); }];
  });
  return self;
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  made.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(self.storage_offset()));
  return made;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) {
    const at::Tensor fresh = at::detail::empty_generic(source.sizes(), &allocator, keys,
                                                       target.scalar_type(), std::nullopt);
    target.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
    target.unsafeGetTensorImpl()->set_sizes_contiguous(source.sizes());
  }
  synchronize();
  on_cpu(target).copy_(on_cpu(source));
  return target;
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, MPS, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}
TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("view", at::native::view);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("as_strided", as_strided);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}
TORCH_LIBRARY(fake_mps, m) {
  m.def("synchronize() -> ()", synchronize);
  m.def("reset() -> ()", reset);
  m.def("set_stream(int id) -> ()", [](int64_t id) { current_stream = id; });
  m.def("faults() -> str", take_faults);
  m.def("live_objects(str cls) -> int", [](std::string cls) { return int64_t{live_objects(cls)}; });
  m.def("open_pools() -> int", [] { return int64_t{open_pools()}; });
  m.def("counters() -> int[]", [] {
    const Counters& c = counters();
    return std::vector<int64_t>{c.libraries, c.pipelines, c.dispatches, c.barriers};
  });
}

}  // namespace fake
