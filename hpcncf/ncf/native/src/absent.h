// A user's items that are no positives, by their number among these: the negatives.
#pragma once

#include <algorithm>
#include <cstdint>

#include "memory.h"
#include "sampling.h"

namespace hpcncf {

// Finds the items that random words draw, in three parts, each of which asks for the memory that
// the next one reads. Beside the sorted positives lie marks: an even share of all words leads to
// each, and it tells how many positives come before whatever those words draw. So a search has a
// few positives to look at, which lie together, however many there are and wherever the items lie.
class Absent {
 public:
  Absent(const int64_t* indptr, const int32_t* positives, int64_t users, int64_t items)
      : indptr_(indptr), positives_(positives), items_(items), marks_(indptr[users] / EACH) {
    for (int64_t user = 0; user < users; ++user)
      mark(of(user), marks_.data() + indptr[user] / EACH);
  }

  // `drawn` holds `count` words; after `find`, the items.
  HPCNCF_INLINE void ask_marks(int64_t user, const int32_t* drawn, int count) const {
    const List list = of(user);
    if (list.held < FEW) return prefetch_lines(list.positives, list.held * sizeof(int32_t));
    for (int k = 0; k < count; ++k) __builtin_prefetch(list.mark(drawn[k]));
  }

  HPCNCF_INLINE void ask_positives(int64_t user, const int32_t* drawn, int count) const {
    const List list = of(user);
    if (list.held < FEW) return;
    for (int k = 0; k < count; ++k) {
      const int32_t* from = list.positives + *list.mark(drawn[k]);
      __builtin_prefetch(from);
      __builtin_prefetch(from + WINDOW - 1);
    }
  }

  void find(int64_t user, int32_t* drawn, int count) const {
    const List list = of(user);
    for (int k = 0; k < count; ++k) {
      const auto nth = int32_t(below(uint32_t(drawn[k]), uint32_t(list.others)));
      drawn[k] = nth + (list.held < FEW ? before_of_few(list, nth)
                                        : before_of_many(list, nth, *list.mark(drawn[k])));
    }
  }

 private:
  static constexpr int EACH = 8;     // positives for a mark
  static constexpr int FEW = 128;    // positives all of which are looked at: marks would cost more
  static constexpr int WINDOW = 16;  // positives looked at together: a second look is seldom needed

  struct List {
    const int32_t *positives, *marks;
    int64_t held, others;

    const int32_t* mark(int32_t word) const {
      return marks + below(uint32_t(word), uint32_t(held / EACH));
    }
  };

  List of(int64_t user) const {
    const int64_t first = indptr_[user], held = indptr_[user + 1] - first;
    return {positives_ + first, marks_.data() + first / EACH, held, items_ - held};
  }

  static void mark(const List& list, int32_t* marks) {
    const int64_t parts = list.held / EACH;
    int64_t low = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t least = part * list.others / parts;  // that words of this part draw
      while (low < list.held && list.positives[low] - low <= least) ++low;
      marks[part] = int32_t(low);
    }
  }

  // How many positives come before the nth absent item.
  static int32_t before_of_few(const List& list, int32_t nth) {
    int32_t before = 0;
    for (int n = 0; n < int(list.held); ++n) before += list.positives[n] - n <= nth;
    return before;
  }

  // The same where `low` are known to. Near the list's end some of those are counted again.
  static int32_t before_of_many(const List& list, int32_t nth, int32_t low) {
    const auto held = int32_t(list.held);
    int32_t more;
    do {
      low = std::min(low, held - WINDOW);
      more = 0;
#pragma GCC unroll 1  // unrolled, it is no loop any more when loops become vectors
      for (int n = 0; n < WINDOW; ++n) more += list.positives[low + n] - n <= nth + low;
      low += more;
    } while (more == WINDOW && low < held);
    return low;
  }

  const int64_t* indptr_;
  const int32_t* positives_;
  int64_t items_;
  Pages<int32_t> marks_;  // read at random
};

}  // namespace hpcncf
