// The rows that several ranks' messages have, each once, with the gradients of those that have it.
#pragma once

#include <vector>

#include "batch.h"
#include "message.h"

namespace hpcncf {

template <class S>
class Union {
 public:
  Distinct rows;

  // Of users (0) or items (1), of a table of `bound` rows.
  void find(const std::vector<Message<S>>& messages, int which, int64_t bound, int width) {
    ids_.clear();
    gradients_.clear();
    for (const Message<S>& message : messages) {
      const int64_t count = message.head().rows[which];
      ids_.insert(ids_.end(), message.ids(which), message.ids(which) + count);
      for (int64_t n = 0; n < count; ++n)
        gradients_.push_back(message.gradients(which) + size_t(n) * width);
    }
    if (ids_.size() > room_) rows.reserve(room_ = ids_.size(), bound);
    rows.find(ids_.data(), int(ids_.size()));
  }

  // The nth row's gradient, summed over the ranks in their order; in `sum` or where it came.
  template <class Width>
  const S* gradient(Width width, int n, S* __restrict sum) const {
    const int first = rows.begin[n], end = rows.begin[n + 1];
    const S* one = gradients_[rows.order[first]];
    if (end == first + 1) return one;
    const S* other = gradients_[rows.order[first + 1]];
    for (int c = 0; c < width; ++c) sum[c] = one[c] + other[c];
    for (int at = first + 2; at < end; ++at) {
      const S* more = gradients_[rows.order[at]];
      for (int c = 0; c < width; ++c) sum[c] += more[c];
    }
    return sum;
  }

 private:
  size_t room_ = 0;
  std::vector<int32_t> ids_;
  std::vector<const S*> gradients_;
};

}  // namespace hpcncf
