// Forward and backward of a batch: its tiles, in groups that threads take one by one. No result
// depends on which thread computed it, nor on how many there are.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "pool.h"
#include "rows.h"
#include "tile.h"

namespace hpcncf {

template <class S>
class Pass {
 public:
  Pass(const Shape& shape, const Dense<S>& dense, Pool& pool, size_t most)
      : shape_(shape), dense_(dense), pool_(pool) {
    for (int n = 0; n < pool.threads(); ++n) tiles_.push_back(std::make_unique<Tile<S>>(shape));
    const size_t positives = size_t(tile_positives(shape.each())), width = size_t(shape.width());
    const size_t tiles = (most + positives - 1) / positives, each = size_t(shape.each());
    gradient_stride_ = (shape.parameters + 63) / 64 * 64;
    gradients_.resize(std::min<size_t>(tiles, MOST_GROUPS) * gradient_stride_);
    now_[0].resize(most * width);
    now_[1].resize(most * each * width);
    row_gradients_[0].resize((most + BLOCK) * width);
    row_gradients_[1].resize((most * each + BLOCK) * width);
    losses_.resize(MOST_GROUPS);
  }

  // What the nth distinct row is as of this step; to be filled before `run`.
  S* now(int which, int n) { return now_[which].data() + size_t(n) * shape_.width(); }

  // Returns the sum of the losses, which count `scale` times. One part calls `between`.
  template <class Between>
  double run(Batch<S>& batch, S scale, Between between) {
    const int count = batch.positives(), positives = tile_positives(shape_.each());
    const int tiles = (count + positives - 1) / positives;
    const int per_group = std::max(LEAST_TILES, (tiles + MOST_GROUPS - 1) / MOST_GROUPS);
    groups_ = (tiles + per_group - 1) / per_group;
    const Work<S> work{shape_,          dense_,
                       batch,           now_[0].data(),
                       now_[1].data(),  row_gradients_[0].data(),
                       row_gradients_[1].data(), scale};
    pool_.run(groups_ + 1, [&](int part, int thread) {
      if (part == 0) return between();
      const int group = part - 1, first = group * per_group;
      double loss = 0;
      for (int tile = first; tile < std::min(tiles, first + per_group); ++tile) {
        const int from = tile * positives, to = std::min(count, from + positives);
        loss += tiles_[thread]->run(work, from, to, group_gradient(group), tile > first);
      }
      losses_[group] = loss;
    });
    return std::accumulate(losses_.begin(), losses_.begin() + groups_, 0.0);
  }

  // The dense gradient is the sum of these, in their order.
  int groups() const { return groups_; }
  S* group_gradient(int group) { return gradients_.data() + group * gradient_stride_; }

  // Of the nth distinct row: the sum over its places, in the order of the batch. To be asked once.
  template <class Width>
  HPCNCF_INLINE const S* row_gradient(Width width, int which, const Distinct& of, int n) {
    S* gradients = row_gradients_[which].data();
    S* __restrict sum = gradients + size_t(of.order[of.begin[n]]) * width;
    for (int at = of.begin[n] + 1; at < of.begin[n + 1]; ++at) {
      const S* __restrict more = gradients + size_t(of.order[at]) * width;
      for (int c = 0; c < width; ++c) sum[c] += more[c];
    }
    return sum;
  }

 private:
  static constexpr int MOST_GROUPS = 32;
  static constexpr int LEAST_TILES = 2;  // of a group but the last: its dense gradients are summed

  const Shape& shape_;
  const Dense<S>& dense_;
  Pool& pool_;
  std::vector<std::unique_ptr<Tile<S>>> tiles_;
  Numbers<S> gradients_, now_[2], row_gradients_[2];
  size_t gradient_stride_ = 0;
  int groups_ = 0;
  std::vector<double> losses_;
};

}  // namespace hpcncf
