// Adam for rows that a batch does not touch: what K steps with zero gradients do, in one go.
//
// A row last stepped at s moves by m * sum w_k / (sqrt(v) + z_k) over its K idle steps, with
// a_t = lr sqrt(1 - b2^t) / (1 - b1^t), w_k = a_(s+k) (b1 / sqrt(b2))^k and
// z_k = eps sqrt(1 - b2^(s+k)) / b2^(k/2). The sum is a Stieltjes transform of the measure with
// weights w_k at z_k; its Gauss quadrature of two nodes, from the moments M_j = sum w_k z_k^j,
// is off by less than 0.32 % from s = 10 on (docs/engines.md). Earlier steps are taken one by one.
#pragma once

#include <cmath>
#include <vector>

#include "memory.h"

namespace hpcncf {

struct Adam {
  double lr, b1, b2, eps;
  double rate(int64_t step) const {
    return lr * std::sqrt(1 - std::pow(b2, double(step))) / (1 - std::pow(b1, double(step)));
  }
  double floor(int64_t step) const { return eps * std::sqrt(1 - std::pow(b2, double(step))); }
};

// The move of one element is m * (w1 / (x + z1) + w2 / (x + z2)), with x = sqrt(v).
template <class S>
struct Nodes {
  S w1, z1, w2, z2;
};

template <class S>
class Idle {
 public:
  static constexpr int64_t ONE_BY_ONE = 10;  // steps up to this one

  explicit Idle(const Adam& adam) : adam_(adam), recent_(CUT + 1), after_(STEPS + 1) {
    for (int j = 0; j < 4; ++j) {
      double q = adam.b1 / std::pow(adam.b2, 0.5 * (1 + j));
      sums_[j].assign(STEPS + 2, q / (1 - q));
      for (int64_t step = STEPS; step >= 0; --step)
        sums_[j][step] = q * (weight(step + 1, j) + sums_[j][step + 1]);
      powers_[j].assign(CUT + 1, 1.0);
      for (int k = 1; k <= CUT; ++k) powers_[j][k] = powers_[j][k - 1] * q;
    }
    for (int64_t step = 0; step <= STEPS; ++step) after_[step] = nodes(moments(step));
    for (int k = 0; k < FINE; ++k) {
      fine_[0][k] = std::pow(adam.b1, k);
      fine_[1][k] = std::pow(adam.b2, k);
      coarse_[0][k] = std::pow(adam.b1, double(k) * FINE);
      coarse_[1][k] = std::pow(adam.b2, double(k) * FINE);
    }
  }

  // Prepares `between` for rows that are to be brought to `step`.
  void until(int64_t step) {
    if (step == until_ || (until_ - CUT > STEPS && step > until_)) return;
    until_ = step;
    int64_t most = step - ONE_BY_ONE < CUT ? step - ONE_BY_ONE : CUT;
    for (int k = 1; k <= most; ++k) recent_[k] = nodes(moments(step - k, k));
  }

  // Of a row last stepped at `step`, ONE_BY_ONE or later, that idled for `idle` steps.
  const Nodes<S>& between(int64_t step, int64_t idle) const {
    if (idle <= CUT) return recent_[idle];
    return after_[step < STEPS ? step : STEPS];
  }

  // b1^steps and b2^steps.
  S decay1(int64_t steps) const { return decay(0, steps); }
  S decay2(int64_t steps) const { return decay(1, steps); }

 private:
  // Beyond STEPS the bias corrections are 1 to 1e-8; (b1 / sqrt(b2))^CUT is below 1e-11.
  static constexpr int64_t STEPS = 20000;
  static constexpr int CUT = 256, FINE = 1024;

  struct Moments {
    double m[4];
  };

  double weight(int64_t step, int j) const {
    double floor = std::sqrt(1 - std::pow(adam_.b2, double(step)));
    return floor / (1 - std::pow(adam_.b1, double(step))) * std::pow(floor, j);
  }

  double sum(int j, int64_t step) const { return sums_[j][step < STEPS ? step : STEPS + 1]; }

  Moments moments(int64_t step) const {
    return {{sum(0, step), sum(1, step), sum(2, step), sum(3, step)}};
  }

  Moments moments(int64_t step, int idle) const {
    Moments all = moments(step), rest = moments(step + idle);
    for (int j = 0; j < 4; ++j) all.m[j] -= powers_[j][idle] * rest.m[j];
    return all;
  }

  Nodes<S> nodes(const Moments& of) const {
    double mean = of.m[1] / of.m[0], second = of.m[2] / of.m[0], third = of.m[3] / of.m[0];
    double variance = second - mean * mean;
    double all = adam_.lr * of.m[0], unit = adam_.eps;
    if (variance < 1e-6 * mean * mean) return {S(all), S(mean * unit), S(0), S(mean * unit)};
    double spread = std::sqrt(variance);
    double skewness =
        (third - 3 * mean * second + 2 * mean * mean * mean) / (spread * variance);
    double half = 0.5 * skewness, root = std::sqrt(1 + half * half);
    return {S(all * (1 - half / root) / 2), S((mean + spread * (half + root)) * unit),
            S(all * (1 + half / root) / 2), S((mean + spread * (half - root)) * unit)};
  }

  S decay(int which, int64_t steps) const {
    if (steps >= int64_t(FINE) * FINE) return S(0);
    return S(coarse_[which][steps / FINE] * fine_[which][steps % FINE]);
  }

  Adam adam_;
  int64_t until_ = -1;
  std::vector<double> sums_[4], powers_[4];
  std::vector<Nodes<S>> recent_, after_;
  double fine_[2][FINE], coarse_[2][FINE];
};

}  // namespace hpcncf
