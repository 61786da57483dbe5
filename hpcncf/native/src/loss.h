// Binary cross entropy of logits, and its slope.
#pragma once

#include <cmath>

#include "vectors.h"

namespace hpcncf {

// The sum of the losses of label 0, log(1 + e^z) = max(z, 0) + log(1 + e^-|z|); slopes become
// sigmoid(z) * scale. The logarithms are taken of products of up to 64 factors, none above 2.
template <class S>
double negative_losses(const S* logits, int count, S scale, S* slopes) {
  constexpr int TOGETHER = 64;
  double loss = 0;
  for (int from = 0; from < count; from += TOGETHER) {
    const int some = count - from < TOGETHER ? count - from : TOGETHER;
    alignas(64) S factors[TOGETHER], above[TOGETHER];
    for (int n = 0; n < some; ++n) {
      S z = logits[from + n];
      S e = exp_negative(z < 0 ? z : -z);
      factors[n] = 1 + e;
      above[n] = z < 0 ? S(0) : z;
      slopes[from + n] = (z < 0 ? e : S(1)) / (1 + e) * scale;
    }
    double product = 1;
    for (int n = 0; n < some; ++n) {
      product *= double(factors[n]);
      loss += double(above[n]);
    }
    loss += std::log(product);
  }
  return loss;
}

// Of positives, each followed by its negatives.
template <class S>
double cross_entropy(const S* logits, int count, int each, S scale, S* slopes) {
  double loss = negative_losses(logits, count, scale, slopes);
  for (int n = 0; n < count; n += each) {
    // Not slope - scale: of a positive that is learnt, that difference would be all rounding.
    S z = logits[n];
    S e = exp_negative(z < 0 ? z : -z);
    slopes[n] = -(z < 0 ? S(1) : e) / (1 + e) * scale;
    loss -= double(z);
  }
  return loss;
}

}  // namespace hpcncf
