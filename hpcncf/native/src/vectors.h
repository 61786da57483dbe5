// Vectors of the machine this file is compiled for, as the compilers' vector extension.
//
// The same source is compiled once for each instruction set; nothing here names one but by its
// width. Every array is padded to PAD numbers, so that no loop over lanes has a remainder.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define HPCNCF_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define HPCNCF_VECTOR_BYTES 32
#else
#define HPCNCF_VECTOR_BYTES 16
#endif

#define HPCNCF_INLINE inline __attribute__((always_inline))

namespace hpcncf {

constexpr int PAD = 8;  // numbers: a vector of doubles where vectors are widest

constexpr int padded(int width) { return (width + PAD - 1) / PAD * PAD; }

template <class S>
constexpr int LANES = HPCNCF_VECTOR_BYTES / sizeof(S);

// Rows of a matrix product's block: with two vectors each, the accumulators fill the registers.
constexpr int BLOCK = HPCNCF_VECTOR_BYTES == 64 ? 8 : 4;

template <class S, int L>
struct VectorOf {
  typedef S type __attribute__((vector_size(L * sizeof(S))));
};
template <class S, int L>
using Vector = typename VectorOf<S, L>::type;

template <class V, class S>
HPCNCF_INLINE V load(const S* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class V, class S>
HPCNCF_INLINE void store(S* to, V value) {
  std::memcpy(to, &value, sizeof value);
}

template <class V, class S>
HPCNCF_INLINE V broadcast(S value) {
  return value - V{};  // adding 0 would be an addition: it makes a -0 a 0
}

// Not max: a NaN must stay one, as in torch, or a training that diverged would look healthy.
template <class V>
HPCNCF_INLINE V relu(V x) {
  return x <= V{} ? V{} : x;
}

// The gradient where the layer let something through.
template <class V>
HPCNCF_INLINE V gated(V gradient, V output) {
  return output <= V{} ? V{} : gradient;
}

// Of PAD lanes, in an order that does not depend on the machine.
template <class S>
HPCNCF_INLINE S lanes_sum(Vector<S, PAD> x) {
  return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
}

// exp of x <= 0, within 2 units in the last place. Plain arithmetic, so that loops vectorise: 2^n
// by adding to the exponent, the rest by Taylor's series on +-ln(2)/2. A NaN stays a NaN.
HPCNCF_INLINE float exp_negative(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  float shifted = x * 1.44269504f + magic;
  float n = shifted - magic;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float series = 1.0f / 5040;
  series = series * r + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  uint32_t bits, exponent;
  std::memcpy(&bits, &series, 4);
  std::memcpy(&exponent, &shifted, 4);
  bits += exponent << 23;
  std::memcpy(&series, &bits, 4);
  return series;
}

// The double build is there to be compared with torch's: no approximation of ours.
HPCNCF_INLINE double exp_negative(double x) { return std::exp(x); }

}  // namespace hpcncf
