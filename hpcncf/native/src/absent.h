// A user's items that are no positives: the negatives.
#pragma once

#include <cstdint>
#include <cstring>

#include "memory.h"
#include "sampling.h"

namespace hpcncf {

// Buckets of positives, each a cache line, as hpcncf/data/arrays.py makes them.
struct Buckets {
  static constexpr int SLOTS = 32;

  int64_t count;
  const int64_t* bounds;  // of each user's
  const uint16_t* slots;  // [bucket][SLOTS]: the low bits of items

  static uint32_t of(int32_t item, uint32_t count) {
    return uint64_t(uint32_t(item) * 0x9E3779B1u) * count >> 32;
  }

  // Whether one of `count` items may be in its bucket, which `at` finds. If not, none is.
  template <class At>
  static bool any(const int32_t* items, int count, At at) {
    constexpr int LANE = LANES<uint16_t>;
    typedef Vector<uint16_t, LANE> Keys;
    Keys found = {};
    for (int k = 0; k < count; ++k) {
      const uint16_t* bucket = at(items[k]);
      const Keys key = broadcast<Keys>(uint16_t(items[k]));
      for (int n = 0; n < SLOTS; n += LANE) found |= Keys(load<Keys>(bucket + n) == key);
    }
    uint64_t parts[sizeof found / 8], all = 0;
    std::memcpy(parts, &found, sizeof found);
    for (const uint64_t part : parts) all |= part;
    return all != 0;
  }
};

// Turns random words into negatives as hpcncf/data/negatives.py does: first into items, some of which
// are positives, then these into the absent items that they stand for. In parts, each of which asks
// for memory that the next one reads.
class Absent {
 public:
  Absent(const int64_t* indptr, const int32_t* positives, const Buckets& buckets, int64_t users,
         int64_t items)
      : indptr_(indptr), positives_(positives), slots_(buckets.slots), items_(uint32_t(items)),
        lists_(users + 1) {
    for (int64_t user = 0; user < users; ++user)
      lists_.data()[user] = {uint32_t(buckets.bounds[user]),
                             uint32_t(indptr[user + 1] - indptr[user])};
    lists_.data()[users].first = uint32_t(buckets.bounds[users]);
  }

  HPCNCF_INLINE void ask(int64_t user) const { __builtin_prefetch(lists_.data() + user); }

  // `drawn` holds `count` words; now items.
  HPCNCF_INLINE void draw(int64_t user, int32_t* drawn, int count) const {
    const List list = of(user);
    for (int k = 0; k < count; ++k) {
      drawn[k] = int32_t(below(uint32_t(drawn[k]), items_ - list.held));
      __builtin_prefetch(bucket(list, drawn[k]));
    }
  }

  // Now negatives.
  void replace_positives(int64_t user, int32_t* drawn, int count) const {
    const List list = of(user);
    const auto at = [&](int32_t item) { return bucket(list, item); };
    if (!Buckets::any(drawn, count, at)) return;
    for (int k = 0; k < count; ++k)
      if (Buckets::any(drawn + k, 1, at)) drawn[k] = absent(user, drawn[k]);
  }

 private:
  struct Entry {
    uint32_t first, held;  // bucket; positives
  };
  struct List {
    uint32_t first, held, buckets;
  };

  List of(int64_t user) const {
    const Entry* entry = lists_.data() + user;
    return {entry->first, entry->held, entry[1].first - entry->first};
  }

  HPCNCF_INLINE const uint16_t* bucket(const List& list, int32_t item) const {
    return slots_ + (size_t(list.first) + Buckets::of(item, list.buckets)) * Buckets::SLOTS;
  }

  // The item, or the one that it stands for.
  int32_t absent(int64_t user, int32_t item) const {
    const int32_t* positives = positives_ + indptr_[user];
    const int64_t held = indptr_[user + 1] - indptr_[user];
    const int64_t before = count_below(item, positives, held, 0);
    if (before == held || positives[before] != item) return item;
    const int64_t nth = int64_t(items_) - held - 1 - before;
    return int32_t(nth + count_below(nth + 1, positives, held, 1));
  }

  // How many positives, each less `times` its place, are below a bound.
  static int64_t count_below(int64_t bound, const int32_t* positives, int64_t held, int64_t times) {
    int64_t low = 0, high = held;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (positives[middle] - times * middle < bound)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  const int64_t* indptr_;
  const int32_t* positives_;
  const uint16_t* slots_;
  uint32_t items_;
  Pages<Entry> lists_;  // read at random
};

}  // namespace hpcncf
