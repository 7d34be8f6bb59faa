// Tokens to their experts and back on the CPU, as the public pages of the operators say.
#include "operators.h"

void route(const Routing& call) {
  int64_t pairs = call.experts.numel(), chosen = call.experts.size(-1);
  TORCH_CHECK(call.drop_pad_mode == 0 && call.quant_mode == -1, "dropping and quantising rows is not emulated");
  TORCH_CHECK(call.has_counts && call.count_kind == 0 && call.row_kind == 0,
              "only sums up to each expert and places of pairs are emulated");
  TORCH_CHECK((call.range == Integers{0, call.num_experts}), "a range of experts is not emulated");
  TORCH_CHECK(call.active_num == 0 || call.active_num == pairs, call.active_num, " rows of ", pairs, " is not emulated");
  Tensor each = call.experts.flatten().to(at::kLong);
  Tensor order = at::argsort(each, true, 0, false);
  put(call.expanded, call.x.index_select(0, at::floor_divide(order, chosen)));
  put(call.places, at::empty_like(each).scatter_(0, order, at::arange(pairs, at::kLong)));
  put(call.ends, at::bincount(each, {}, call.num_experts).cumsum(0));
}

void grouped_product(const GroupedProduct& call) {
  TORCH_CHECK(call.x.size() == 1 && call.weight.size() == 1 && call.y.size() == 1, "lists of tensors are not emulated");
  TORCH_CHECK(call.split_item == 2 && call.group_type == 0 && call.group_list_type == 0 && call.act_type == 0,
              "only one result of groups of rows by their ends is emulated");
  const Tensor &x = call.x[0], &weight = call.weight[0];
  TORCH_CHECK(weight.dim() == 3 && weight.size(0) == call.ends.numel(), "weight is ", weight.sizes(), " for ",
              call.ends.numel(), " groups");
  TORCH_CHECK(call.ends[-1].item<int64_t>() == x.size(0), "the last group ends at ", call.ends[-1].item<int64_t>(),
              " of ", x.size(0), " rows");
  int64_t start = 0;
  for (int64_t group = 0; group < weight.size(0); ++group) {
    int64_t end = call.ends[group].item<int64_t>();
    Tensor rows = x.narrow(0, start, end - start).to(at::kFloat);
    put(call.y[0].narrow(0, start, end - start), at::matmul(rows, weight[group].to(at::kFloat)));
    start = end;
  }
}

void gather_weighted(const Tensor& rows, const Tensor& places, const Tensor& weights, const Tensor& y) {
  TORCH_CHECK(weights.defined() && weights.dim() == 2, "a sum without weights is not emulated");
  Tensor parts = rows.index_select(0, places).to(at::kFloat).view({weights.size(0), weights.size(1), -1});
  put(y, (parts * weights.to(at::kFloat).unsqueeze(-1)).sum({1}));
}
