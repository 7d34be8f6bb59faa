// CANN's handles (aclTensor and its kin) and the two phases of every aclnn call.
#include "executor.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

using fake::guarded;
using fake::kSuccess;

namespace {

// Of aclFormat: NCHW, ND, NCDHW, NCL. What permutes storage (FRACTAL_NZ, NC1HWC0, …) must not be read as plain strides.
bool is_plain(int format) { return format == 0 || format == 2 || format == 30 || format == 47; }

at::Scalar scalar_at(const void* value, int dtype) {
  switch (scalar_type(dtype)) {
    case at::kFloat: return *static_cast<const float*>(value);
    case at::kDouble: return *static_cast<const double*>(value);
    case at::kLong: return *static_cast<const int64_t*>(value);
    case at::kInt: return *static_cast<const int32_t*>(value);
    case at::kBool: return *static_cast<const bool*>(value);
    case at::kHalf: return float(*static_cast<const at::Half*>(value));
    case at::kBFloat16: return float(*static_cast<const at::BFloat16*>(value));
    default: throw std::runtime_error("a scalar of aclDataType " + std::to_string(dtype) + " is not emulated");
  }
}

}  // namespace

void as_device(const std::function<void()>& body) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
  try {
    body();
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

at::ScalarType scalar_type(int acl_dtype) {
  switch (acl_dtype) {
    case 0: return at::kFloat;
    case 1: return at::kHalf;
    case 2: return at::kChar;
    case 3: return at::kInt;
    case 4: return at::kByte;
    case 6: return at::kShort;
    case 9: return at::kLong;
    case 11: return at::kDouble;
    case 12: return at::kBool;
    case 27: return at::kBFloat16;
    default: throw std::runtime_error("aclDataType " + std::to_string(acl_dtype) + " is not emulated");
  }
}

size_t aclTensor::bytes() const {
  if (format == kFractalNz) return c10::multiply_integers(storage_sizes) * c10::elementSize(dtype);
  return at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
}

at::Tensor aclOpExecutor::view(const aclTensor& handle, const std::vector<int64_t>& sizes,
                               const std::vector<int64_t>& strides, const char* argument) {
  auto options = at::TensorOptions().dtype(handle.dtype).device(at::kCPU);
  if (!handle.bytes()) return at::empty(sizes, options);
  ranges.push_back({handle.address, handle.bytes()});
  try {
    return at::from_blob(fake::bytes_of(handle.address, handle.bytes()), sizes, strides, options);
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(argument) + ": " + error.what());
  }
}

at::Tensor aclOpExecutor::tensor(const aclTensor* handle, const char* argument) {
  if (!handle) throw std::runtime_error(std::string(argument) + " is missing");
  return optional_tensor(handle, argument);
}

at::Tensor aclOpExecutor::optional_tensor(const aclTensor* handle, const char* argument) {
  if (!handle) return {};
  if (!is_plain(handle->format)) {
    throw std::runtime_error(std::string(argument) + " has aclFormat " + std::to_string(handle->format) +
                             ", which is not emulated");
  }
  return view(*handle, handle->sizes, handle->strides, argument);
}

Laid aclOpExecutor::laid(const aclTensor* handle, const char* argument) {
  if (!handle || handle->format != kFractalNz) return {tensor(handle, argument), {}, {}, false};
  if (handle->storage_sizes.size() != 4)
    throw std::runtime_error(std::string(argument) + " is fractal and not a matrix");
  auto strides = at::detail::defaultStrides(handle->storage_sizes);
  return {view(*handle, handle->storage_sizes, strides, argument), handle->sizes, handle->strides, true};
}

std::vector<at::Tensor> aclOpExecutor::tensors(const aclTensorList* handle, const char* argument) {
  if (!handle) throw std::runtime_error(std::string(argument) + " is missing");
  std::vector<at::Tensor> views;
  for (const aclTensor* each : handle->tensors) views.push_back(optional_tensor(each, argument));
  return views;
}

std::vector<at::Tensor> aclOpExecutor::optional_tensors(const aclTensorList* handle, const char* argument) {
  return handle ? tensors(handle, argument) : std::vector<at::Tensor>();
}

at::Scalar aclOpExecutor::scalar(const aclScalar* handle, const char* argument) const {
  if (!handle) throw std::runtime_error(std::string(argument) + " is missing");
  return handle->value;
}

std::vector<int64_t> aclOpExecutor::integers(const aclIntArray* handle, const char* argument) const {
  if (!handle) throw std::runtime_error(std::string(argument) + " is missing");
  return handle->values;
}

std::optional<std::vector<int64_t>> aclOpExecutor::optional_integers(const aclIntArray* handle) const {
  return handle ? std::optional(handle->values) : std::nullopt;
}

int plan(const char* name, uint64_t* workspace_bytes, aclOpExecutor** executor,
         const std::function<void(aclOpExecutor&)>& lift) {
  return guarded(name, [&] {
    auto planned = std::make_unique<aclOpExecutor>();
    planned->name = name;
    as_device([&] { lift(*planned); });
    *workspace_bytes = 0;
    *executor = planned.release();
    return kSuccess;
  });
}

int launch(aclOpExecutor* handle, void* stream) {
  std::unique_ptr<aclOpExecutor> executor(handle);
  return guarded(executor->name, [&] {
    fake::count("launches");
    fake::count_launch(executor->name);
    auto run = [ranges = executor->ranges, compute = executor->compute] {
      for (auto& range : ranges) fake::bytes_of(range.address, range.bytes);
      as_device(compute);
    };
    fake::enqueue(fake::stream_of(stream), executor->name, run);
    return kSuccess;
  });
}

CANN_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return kSuccess;
}

CANN_API aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dims, int dtype, const int64_t* strides,
                                    int64_t offset, int format, const int64_t* storage_sizes, uint64_t storage_dims,
                                    void* address) {
  aclTensor* tensor = nullptr;
  guarded("aclCreateTensor", [&] {
    at::ScalarType type = scalar_type(dtype);
    const char* first =
        address ? static_cast<const char*>(address) + offset * int64_t(c10::elementSize(type)) : nullptr;
    tensor = new aclTensor{type,
                           {sizes, sizes + dims},
                           {strides, strides + dims},
                           first,
                           format,
                           {storage_sizes, storage_sizes + storage_dims}};
    return kSuccess;
  });
  return tensor;
}

CANN_API aclScalar* aclCreateScalar(void* value, int dtype) {
  aclScalar* scalar = nullptr;
  guarded("aclCreateScalar", [&] {
    scalar = new aclScalar{scalar_at(value, dtype)};
    return kSuccess;
  });
  return scalar;
}

CANN_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t size) {
  return new aclIntArray{{values, values + size}};
}

CANN_API aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t size) {
  return new aclTensorList{{tensors, tensors + size}};
}

CANN_API int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return kSuccess;
}

CANN_API int aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return kSuccess;
}

CANN_API int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return kSuccess;
}

// A list owns its tensors.
CANN_API int aclDestroyTensorList(const aclTensorList* list) {
  if (list) {
    for (const aclTensor* tensor : list->tensors) delete tensor;
  }
  delete list;
  return kSuccess;
}
