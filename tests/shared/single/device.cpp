// A device of torch without float64, on the memory of the CPU: "single".
//
// Operations run on the CPU, on copies (at::native::cpu_fallback), but for those that make or view memory. Whatever would
// make a float64 tensor there raises, as on a GPU that has none. Built and loaded by __init__.py.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using at::Tensor;
const auto TYPE = c10::DeviceType::PrivateUse1;
const auto DEVICE = c10::Device(TYPE, 0);
const auto STREAM = c10::Stream(c10::Stream::DEFAULT, DEVICE);
const auto KEYS = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);

at::ScalarType allowed(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(dtype != at::kDouble && dtype != at::kComplexDouble, "the device 'single' has no float64");
  return dtype;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(size);
    return {data, data, raw_deleter(), DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) { c10::GetDefaultCPUAllocator()->raw_deallocate(data); };
  }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};
Memory memory;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::DeviceIndex deviceCount() const override { return 1; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
};

// autograd computes backward on a thread of the device, which asks for streams and events
struct Guard final : c10::impl::NoOpDeviceGuardImpl<TYPE> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return STREAM; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return STREAM; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, KEYS, allowed(c10::dtype_or_default(dtype)), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, allowed(c10::dtype_or_default(dtype)));
}

// the same memory as a tensor of the CPU
Tensor seen(const Tensor& x) {
  if (x.device().is_cpu()) return x;
  auto options = at::TensorOptions().dtype(x.dtype());
  return at::from_blob(x.mutable_data_ptr(), x.sizes(), x.strides(), [](void*) {}, options, at::kCPU);
}

Tensor copy_from(const Tensor& x, const Tensor& to, bool) {
  // dtypes are converted on the CPU: a float64 tensor of the CPU may come as another dtype
  seen(to).copy_(seen(x));
  return to;
}

const Tensor& resize(const Tensor& x, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  x.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  auto storage = x.storage();
  const size_t bytes = (x.storage_offset() + x.numel()) * x.itemsize();
  if (bytes > storage.nbytes()) {
    storage.set_data_ptr(memory.allocate(bytes));
    storage.set_nbytes(bytes);
  }
  return x;
}

Tensor copy_from_and_resize(const Tensor& x, const Tensor& to) {
  if (x.sizes() != to.sizes()) resize(to, x.sizes(), std::nullopt);
  return copy_from(x, to, false);
}

c10::Scalar number(const Tensor& x) { return seen(x).item(); }

Tensor& set_storage(Tensor& x, c10::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  x.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  x.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return x;
}

Tensor& set_whole(Tensor& x, c10::Storage source) {
  const int64_t count = source.nbytes() / x.itemsize();
  return set_storage(x, std::move(source), 0, {count}, {1});
}

Tensor as_strided(const Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(x, size, stride, offset);
}

// changes running statistics that its schema does not call changed, so that the fallback would change copies
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training, double momentum,
    double eps) {
  auto cpu = [](const std::optional<Tensor>& value) {
    return value && value->defined() ? std::optional<Tensor>(seen(*value)) : value;
  };
  auto [y, m, r] = at::native_batch_norm(
      seen(x), cpu(weight), cpu(bias), cpu(mean), cpu(variance), training, momentum, eps);
  return {y.to(DEVICE), m.to(DEVICE), r.to(DEVICE)};
}

// torch leaves convolutions of other devices to them
Tensor convolution(
    const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef extra,
    c10::SymInt groups) {
  auto b = bias && bias->defined() ? std::optional<Tensor>(seen(*bias)) : std::nullopt;
  return at::convolution_symint(seen(x), seen(weight), b, stride, padding, dilation, transposed, extra, groups)
      .to(DEVICE);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef extra, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  std::vector<c10::SymInt> sizes{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [of_x, of_weight, of_bias] = at::convolution_backward_symint(
      seen(grad), seen(x), seen(weight), sizes, stride, padding, dilation, transposed, extra, groups, wanted);
  auto placed = [](const Tensor& value) { return value.defined() ? value.to(DEVICE) : value; };
  return {placed(of_x), placed(of_weight), placed(of_bias)};
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", number);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage", set_whole);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("view", at::native::view);
  m.impl("unfold", at::native::unfold);
  m.impl("native_batch_norm", batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

struct Registered {
  Registered() {
    c10::SetAllocator(TYPE, &memory);
    at::RegisterPrivateUse1HooksInterface(new Hooks());
  }
} registered;

}  // namespace
