// An aclnn call on its way: arguments lifted out of CANN's handles in phase one, computed on the CPU when the stream
// runs.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "fake.h"
#include "formats.h"

struct aclTensor {
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  const char* address;  // of the first element; null: a tensor without elements
  int format;
  std::vector<int64_t> storage_sizes;  // of a fractal tensor

  size_t bytes() const;
};
struct aclScalar {
  at::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> tensors;
};

struct aclOpExecutor {
  struct Range {
    const void* address;
    size_t bytes;
  };
  std::string name;
  std::vector<Range> ranges;  // checked again when it runs: a tensor may be freed before its kernel
  std::function<void()> compute;

  // The handle's bytes as a tensor of these sizes and strides.
  at::Tensor view(const aclTensor& handle, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                  const char* argument);
  at::Tensor tensor(const aclTensor* handle, const char* argument);           // throws on null
  at::Tensor optional_tensor(const aclTensor* handle, const char* argument);  // null: undefined
  Laid laid(const aclTensor* handle, const char* argument);                   // plain or fractal
  std::vector<at::Tensor> tensors(const aclTensorList* handle, const char* argument);
  std::vector<at::Tensor> optional_tensors(const aclTensorList* handle, const char* argument);  // empty where absent
  at::Scalar scalar(const aclScalar* handle, const char* argument) const;
  std::vector<int64_t> integers(const aclIntArray* handle, const char* argument) const;
  std::optional<std::vector<int64_t>> optional_integers(const aclIntArray* handle) const;
};

at::ScalarType scalar_type(int acl_dtype);

// Runs the body below autograd, autocast and every Python mode: it is the device's business, not torch's. What ATen
// throws leaves it as a plain std::runtime_error, without ATen's stack.
void as_device(const std::function<void()>& body);

// Phase one: `lift` fills the executor; nothing is computed. Phase two: onto the stream with it.
int plan(const char* name, uint64_t* workspace_bytes, aclOpExecutor** executor,
         const std::function<void(aclOpExecutor&)>& lift);
int launch(aclOpExecutor* executor, void* stream);
