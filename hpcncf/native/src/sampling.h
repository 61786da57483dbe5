// The instances of hpcncf/data/epoch_order.py and negatives.py, bit for bit; they say what and why.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hpcncf {

enum Purpose : uint32_t { NEGATIVES = 0, ORDER = 1 };

struct Words {
  uint32_t word[4];
};

// Philox4x32-10 at counter (row, epoch, purpose * 2^24 + block).
inline Words philox(uint64_t seed, Purpose purpose, uint32_t epoch, uint64_t row, uint32_t block) {
  uint32_t c0 = uint32_t(row), c1 = uint32_t(row >> 32), c2 = epoch;
  uint32_t c3 = (uint32_t(purpose) << 24) + block;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t(c0) * 0xD2511F53u, p1 = uint64_t(c2) * 0xCD9E8D57u;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

inline uint32_t below(uint32_t word, uint32_t bound) { return uint64_t(word) * bound >> 32; }

// A permutation of 0 to count - 1, computed at any place without its neighbours.
class Permutation {
 public:
  static constexpr int MOST = 256;

  Permutation(uint64_t seed, Purpose purpose, uint32_t epoch, int64_t count)
      : count_(uint64_t(count)) {
    int bits = 4;
    while (count > 1 && uint64_t(count - 1) >> bits) ++bits;
    left_bits_ = bits / 2;
    right_bits_ = bits - left_bits_;
    for (int round = 0; round < ROUNDS; ++round)
      keys_[round] = philox(seed, purpose, epoch, uint64_t(round), 0).word[0];
  }

  // Fills `found` with what is at places start to start + count, MOST at most. The bijection is
  // one of a power of two: what falls outside goes on until it is inside.
  void at(int64_t start, int count, int64_t* found) const {
    int64_t values[MOST] = {};
    int places[MOST];
    for (int n = 0; n < count; ++n) values[n] = start + n, places[n] = n;
    for (int left = count; left > 0;) {
      if (count_ > 1)
        for (int n = 0; n < left; n += TOGETHER) mix(values + n);
      int outside = 0;
      for (int n = 0; n < left; ++n) {
        const int64_t value = values[n];
        const int place = places[n];
        found[place] = value;
        values[outside] = value, places[outside] = place;
        outside += uint64_t(value) >= count_;
      }
      left = outside;
    }
  }

 private:
  static constexpr int ROUNDS = 24, TOGETHER = 16;

  // Of several values at once: a round's chain of instructions is long, they hide it.
  void mix(int64_t* values) const {
    const uint64_t left_mask = (uint64_t(1) << left_bits_) - 1;
    const uint64_t right_mask = (uint64_t(1) << right_bits_) - 1;
    const int shift = right_bits_ - left_bits_;
    uint64_t left[TOGETHER], right[TOGETHER];
    for (int n = 0; n < TOGETHER; ++n) {
      left[n] = uint64_t(values[n]) >> right_bits_;
      right[n] = uint64_t(values[n]) & right_mask;
    }
    for (int round = 0; round < ROUNDS; ++round)
      for (int n = 0; n < TOGETHER; ++n) {
        uint64_t product = left[n] * 0xD2B74407B1CE6E93ull;
        uint64_t low = (product & 0xFFFFFFFFu) << shift | right[n] >> left_bits_;
        left[n] = ((product >> 32) ^ keys_[round] ^ right[n]) & left_mask;
        right[n] = low & right_mask;
      }
    for (int n = 0; n < TOGETHER; ++n) values[n] = int64_t(left[n] << right_bits_ | right[n]);
  }

  uint64_t count_;
  int left_bits_, right_bits_;
  uint64_t keys_[ROUNDS];
};

// An epoch's order of rows: of blocks, in each of which `each` rows that lie side by side.
class Order {
 public:
  Order(uint64_t seed, int64_t epoch, int64_t rows, int64_t each)
      : epoch(epoch), each_(each), whole_(rows / each * each),
        blocks_(seed, ORDER, uint32_t(epoch), rows / each) {}

  // Fills `rows` with those at positions start to start + count.
  void at(int64_t start, int count, int64_t* rows) const {
    const int64_t end = start + count, whole = std::min(end, whole_);
    int64_t block = start / each_, within = start % each_;
    while (start < whole) {
      int64_t blocks[Permutation::MOST];
      const int64_t left = (within + whole - start + each_ - 1) / each_;
      const int some = int(std::min<int64_t>(left, Permutation::MOST));
      blocks_.at(block, some, blocks);
      block += some;
      for (int n = 0; n < some; ++n, within = 0)
        for (; within < each_ && start < whole; ++within, ++start)
          *rows++ = blocks[n] * each_ + within;
    }
    while (start < end) *rows++ = start++;  // those behind the last whole block
  }

  int64_t epoch;

 private:
  int64_t each_, whole_;
  Permutation blocks_;
};

}  // namespace hpcncf
