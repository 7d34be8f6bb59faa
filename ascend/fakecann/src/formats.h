// Tensors whose storage is not plain strides: FRACTAL_NZ, the layout that the cube unit reads its weights in.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "fake.h"

// A matrix of a tensor's own shape in whatever layout its storage has. Read when it is its turn, not before.
struct Laid {
  at::Tensor storage;                   // plain: the tensor itself; fractal: [columns / 16, rows / 16, 16, 16]
  std::vector<int64_t> sizes, strides;  // of the tensor
  bool is_fractal;
};

constexpr int kNd = 2, kFractalNz = 29;  // aclFormat

// The shape of the storage that a matrix of these sizes takes in FRACTAL_NZ. Throws for anything but matrices.
std::vector<int64_t> fractal_sizes(const std::vector<int64_t>& sizes);
at::Tensor logical(const Laid& tensor);
void store(const Laid& tensor, const at::Tensor& value);
