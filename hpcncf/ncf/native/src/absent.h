// A user's items that are no positives, by their number among these: the negatives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "memory.h"
#include "sampling.h"

namespace hpcncf {

// Finds the items that random words draw: the nth item that is no positive is nth plus how many
// positives come before it. A short list is searched by its keys, all of them: 16 bits of each
// positive less its place, which lie on one page. A long one has marks: an even share of all words
// leads to each, and it tells how many positives come before whatever those words draw. So there
// are a few positives to look at, which lie together, wherever the items lie. In parts, each of
// which asks for memory that a later one reads.
class Absent {
 public:
  Absent(const int64_t* indptr, const int32_t* positives, const uint16_t* keys, int64_t users,
         int64_t items)
      : indptr_(indptr),
        positives_(positives),
        keys_(keys),
        end_(keys + indptr[users]),
        items_(items),
        shift_(key_shift(items)),
        marks_(indptr[users] / EACH) {
    for (int64_t user = 0; user < users; ++user)
      if (const List list = of(user); !list.is_short())
        mark(list, marks_.data() + indptr[user] / EACH);
  }

  // What keys leave out, so that those of the highest items fit.
  static int key_shift(int64_t items) {
    int shift = 0;
    while ((items - 1) >> shift > UINT16_MAX) ++shift;
    return shift;
  }

  // `drawn` holds `count` words; after `find`, the items.
  HPCNCF_INLINE void ask_first(int64_t user, const int32_t* drawn, int count) const {
    const List list = of(user);
    if (list.is_short())
      return prefetch_lines<For::READING_LATER>(list.keys, size_t(list.held) * sizeof *list.keys);
    for (int k = 0; k < count; ++k) __builtin_prefetch(list.mark(drawn[k]));
  }

  HPCNCF_INLINE void ask_positives(int64_t user, const int32_t* drawn, int count) const {
    const List list = of(user);
    if (list.is_short()) return;
    for (int k = 0; k < count; ++k) {
      const int32_t* from = list.positives + *list.mark(drawn[k]);
      __builtin_prefetch(from);
      __builtin_prefetch(from + WINDOW - 1);
    }
  }

  // Those that were asked for, from the second cache into the first.
  HPCNCF_INLINE void ask_keys_nearer(int64_t user) const {
    const List list = of(user);
    if (list.is_short()) prefetch_lines(list.keys, size_t(list.held) * sizeof *list.keys);
  }

  void find(int64_t user, int32_t* drawn, int count) const {
    const List list = of(user);
    for (int k = 0; k < count; k += TOGETHER) {
      const int some = std::min(TOGETHER, count - k);
      int32_t nth[TOGETHER] = {};
      for (int n = 0; n < some; ++n)
        nth[n] = int32_t(below(uint32_t(drawn[k + n]), uint32_t(list.others)));
      if (list.is_short()) {
        add_before(list, nth);
      } else {
        for (int n = 0; n < some; ++n)
          nth[n] += before_of_many(list, nth[n], *list.mark(drawn[k + n]));
      }
      std::copy_n(nth, some, drawn + k);
    }
  }

 private:
  static constexpr int EACH = 8;  // positives for a mark
  static constexpr int WINDOW = 16;  // positives looked at together: more are seldom needed
  static constexpr int TOGETHER = 4;  // words
  static constexpr int KEYS = LANES<uint16_t>;  // of a vector
  static constexpr int MOST_VECTORS = 16;  // of a short list
  typedef Vector<uint16_t, KEYS> Keys;

  struct List {
    const int32_t *positives, *marks;
    const uint16_t* keys;
    int64_t held, others;

    bool is_short() const { return held <= MOST_VECTORS * KEYS; }

    const int32_t* mark(int32_t word) const {
      return marks + below(uint32_t(word), uint32_t(held / EACH));
    }
  };

  List of(int64_t user) const {
    const int64_t first = indptr_[user], held = indptr_[user + 1] - first;
    return {positives_ + first, marks_.data() + first / EACH, keys_ + first, held, items_ - held};
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

  // To each, how many positives of a short list come before it.
  void add_before(const List& list, int32_t (&nth)[TOGETHER]) const {
    Keys key[TOGETHER], before[TOGETHER] = {}, place;
    for (int n = 0; n < TOGETHER; ++n) key[n] = broadcast<Keys>(uint16_t(nth[n] >> shift_));
    for (int n = 0; n < KEYS; ++n) place[n] = uint16_t(n);
    const int held = int(list.held);
    int first = 0;
    for (; first + KEYS <= held; first += KEYS) {
      const Keys keys = load<Keys>(list.keys + first);
      for (int n = 0; n < TOGETHER; ++n) before[n] -= Keys(keys <= key[n]);
    }
    if (first < held) {
      const Keys keys = load_until<Keys>(list.keys + first, end_);
      const Keys mine = Keys(place < broadcast<Keys>(uint16_t(held - first)));
      for (int n = 0; n < TOGETHER; ++n) before[n] -= Keys(keys <= key[n]) & mine;
    }
    for (int n = 0; n < TOGETHER; ++n) nth[n] += exactly(list, nth[n], sum_of(before[n]));
  }

  // Of the positives with a key up to the nth's, those that come before it: nearly always all.
  int32_t exactly(const List& list, int32_t nth, int32_t before) const {
    while (before && list.keys[before - 1] == nth >> shift_ &&
           list.positives[before - 1] - (before - 1) > nth)
      --before;
    return before;
  }

  // Of numbers so small that four lanes' sums fit into one.
  static int32_t sum_of(Keys x) {
    uint64_t fours[KEYS / 4], sum = 0;
    std::memcpy(fours, &x, sizeof x);
    for (const uint64_t four : fours) sum += four;
    return int32_t(sum * 0x0001000100010001ull >> 48);
  }

  // How many positives come before the nth absent item, where `low` are known to. Near the list's
  // end some of those are counted again.
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
  const uint16_t *keys_, *end_;
  int64_t items_;
  int shift_;
  Pages<int32_t> marks_;  // read at random
};

}  // namespace hpcncf
