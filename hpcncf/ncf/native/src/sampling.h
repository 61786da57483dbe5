// The instances of hpcncf/ncf/sampling.py, bit for bit; that module says what and why.
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

// An epoch's order: `rows` at positions, each computed without its neighbours.
class Order {
 public:
  Order(uint64_t seed, int64_t epoch, int64_t rows) : epoch(epoch), rows_(uint64_t(rows)) {
    int bits = 4;
    while (rows > 1 && uint64_t(rows - 1) >> bits) ++bits;
    left_bits_ = bits / 2;
    right_bits_ = bits - left_bits_;
    for (int round = 0; round < ROUNDS; ++round)
      keys_[round] = philox(seed, ORDER, uint32_t(epoch), uint64_t(round), 0).word[0];
  }

  // Fills `rows` with those at positions start to start + count.
  void at(int64_t start, int count, int64_t* rows) const {
    for (int n = 0; n < count; n += CHUNK)
      chunk(start + n, std::min(CHUNK, count - n), rows + n);
  }

  int64_t epoch;

 private:
  static constexpr int ROUNDS = 24, TOGETHER = 16, CHUNK = 256;

  // The bijection is one of a power of two: what falls outside goes on until it is inside.
  void chunk(int64_t start, int count, int64_t* rows) const {
    int64_t values[CHUNK] = {};
    int places[CHUNK];
    for (int n = 0; n < count; ++n) values[n] = start + n, places[n] = n;
    for (int left = count; left > 0;) {
      if (rows_ > 1)
        for (int n = 0; n < left; n += TOGETHER) mix(values + n);
      int outside = 0;
      for (int n = 0; n < left; ++n) {
        const int64_t value = values[n];
        const int place = places[n];
        rows[place] = value;
        values[outside] = value, places[outside] = place;
        outside += uint64_t(value) >= rows_;
      }
      left = outside;
    }
  }

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

  uint64_t rows_;
  int left_bits_, right_bits_;
  uint64_t keys_[ROUNDS];
};

}  // namespace hpcncf
