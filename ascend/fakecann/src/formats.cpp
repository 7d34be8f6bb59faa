// FRACTAL_NZ: a matrix cut into blocks of 16 × 16, blocks of a column under each other, columns side by side in
// storage. Only whole matrices of two-byte numbers, and their transposes: a slice of one has no meaning on the device
// either.
#include "formats.h"

#include "executor.h"

namespace {

constexpr int64_t kBlock = 16;

int64_t blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }

bool is_transposed(const Laid& tensor) {
  int64_t rows = tensor.sizes[0], columns = tensor.sizes[1];
  if (tensor.strides == std::vector<int64_t>{columns, 1}) return false;
  TORCH_CHECK((tensor.strides == std::vector<int64_t>{1, rows}),
              "a view of a fractal matrix that is not its transpose");
  return true;
}

}  // namespace

std::vector<int64_t> fractal_sizes(const std::vector<int64_t>& sizes) {
  TORCH_CHECK(sizes.size() == 2, "a fractal tensor of ", sizes.size(), " axes is not emulated");
  return {blocks(sizes[1]), blocks(sizes[0]), kBlock, kBlock};
}

at::Tensor logical(const Laid& tensor) {
  if (!tensor.is_fractal) return tensor.storage;
  bool transposed = is_transposed(tensor);
  at::Tensor padded = tensor.storage.permute({1, 2, 0, 3}).flatten(2, 3).flatten(0, 1);
  at::Tensor matrix = padded.narrow(0, 0, tensor.sizes[transposed]).narrow(1, 0, tensor.sizes[!transposed]);
  return transposed ? matrix.t() : matrix;
}

void store(const Laid& tensor, const at::Tensor& value) {
  if (!tensor.is_fractal) {
    tensor.storage.copy_(value);
    return;
  }
  TORCH_CHECK(!is_transposed(tensor), "writing through the transpose of a fractal matrix is not emulated");
  int64_t rows = blocks(tensor.sizes[0]), columns = blocks(tensor.sizes[1]);
  at::Tensor padded =
      at::constant_pad_nd(value, {0, columns * kBlock - value.size(1), 0, rows * kBlock - value.size(0)});
  tensor.storage.copy_(padded.view({rows, kBlock, columns, kBlock}).permute({2, 0, 1, 3}));
}

// The caller frees the shape with delete[].
CANN_API int aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* source, int format, int, int64_t** shape,
                                                      uint64_t* dims, int* actual_format) {
  return fake::guarded("aclnnNpuFormatCastCalculateSizeAndFormat", [&] {
    as_device([&] {
      TORCH_CHECK(format == kNd || format == kFractalNz, "aclFormat ", format, " is not emulated");
      TORCH_CHECK(c10::elementSize(source->dtype) == 2, "a fractal tensor of ", source->dtype, " is not emulated");
      auto sizes = format == kFractalNz ? fractal_sizes(source->sizes) : source->sizes;
      *shape = new int64_t[sizes.size()];
      std::copy(sizes.begin(), sizes.end(), *shape);
      *dims = sizes.size();
      *actual_format = format;
    });
    return fake::kSuccess;
  });
}
