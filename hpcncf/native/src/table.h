// A table of embeddings: each row holds its parameters, their moments and when they were stepped.
#pragma once

#include <cmath>
#include <type_traits>

#include "idle.h"
#include "memory.h"
#include "shape.h"

namespace hpcncf {

enum class Rule { ADAM = 0, LAZY_ADAM = 1, SGD = 2 };

// What one step does to a parameter; of Adam: rate * m / (sqrt(v) + floor).
template <class S>
struct Update {
  Rule rule;
  S rate, floor;
  S b1, b2, take1, take2;  // take is 1 - b, of doubles: of floats it would be off by 1e-5
  int64_t step;
};

// A row is contiguous, so that a step that touches it has one place to wait for: parameters,
// first moments, second moments, the step they belong to (0: none yet), filled up to a cache line.
template <class S>
class Table {
 public:
  Table(int64_t rows, int width, Rule rule)
      : rows_(rows), width_(width), stride_(stride(width, rule)), pages_(size_t(rows) * stride_) {}

  S* row(int64_t id) { return pages_.data() + id * stride_; }
  const S* row(int64_t id) const { return pages_.data() + id * stride_; }
  int64_t rows() const { return rows_; }
  int stride() const { return stride_; }
  int width() const { return width_; }
  size_t row_bytes() const { return size_t(stride_) * sizeof(S); }

  int64_t stepped(const S* row) const {
    int64_t step;
    std::memcpy(&step, row + 3 * width_, sizeof step);
    return step;
  }
  void set_stepped(S* row, int64_t step) const {
    std::memcpy(row + 3 * width_, &step, sizeof step);
  }

 private:
  static int stride(int width, Rule rule) {
    int used = rule == Rule::SGD ? width : 3 * width + int(sizeof(int64_t) / sizeof(S));
    int line = int(64 / sizeof(S));
    return (used + line - 1) / line * line;
  }

  int64_t rows_;
  int width_, stride_;
  Pages<S> pages_;
};

// Calls body with the width as a constant where it is a common one: what is done to a row is so
// little that loops of unknown length cost a third more.
template <class Body>
HPCNCF_INLINE void with_width(int width, Body body) {
  switch (width) {
    case 40:  // GMF 8, MLP 32
      return body(std::integral_constant<int, 40>());
    case 72:  // GMF 8, MLP 64
      return body(std::integral_constant<int, 72>());
    default:
      return body(width);
  }
}

// The row as it is after `idle.until`, into `now`; its moments stay where they are.
template <class S, class Width>
HPCNCF_INLINE void catch_up(Width width, const Table<S>& table, const Idle<S>& idle,
                            const S* __restrict row, int64_t until, S* __restrict now) {
  int64_t step = table.stepped(row);
  if (step == 0 || step >= until) {
    std::memcpy(now, row, width * sizeof(S));
    return;
  }
  const Nodes<S> nodes = idle.between(step, until - step);
  const S w1 = nodes.w1, w2 = nodes.w2, z1 = nodes.z1, z2 = nodes.z2;
  const S *m = row + width, *v = row + 2 * width;
  for (int n = 0; n < width; ++n) {
    S x = std::sqrt(v[n]);
    S x1 = x + z1, x2 = x + z2;  // one division for both nodes
    now[n] = row[n] - m[n] * (w1 * x2 + w2 * x1) / (x1 * x2);
  }
}

// The idle steps up to Idle::ONE_BY_ONE, where the quadrature is not yet good enough. In place.
template <class S>
void first_steps(const Table<S>& table, const Adam& adam, S* row, int64_t until) {
  const int width = table.width();
  int64_t step = table.stepped(row);
  if (step == 0) return;
  int64_t last = until < Idle<S>::ONE_BY_ONE ? until : Idle<S>::ONE_BY_ONE;
  for (; step < last; ++step) {
    const S rate = S(adam.rate(step + 1)), floor = S(adam.floor(step + 1));
    const S b1 = S(adam.b1), b2 = S(adam.b2);
    S *p = row, *m = row + width, *v = row + 2 * width;
    for (int n = 0; n < width; ++n) {
      m[n] *= b1;
      v[n] *= b2;
      p[n] -= rate * m[n] / (std::sqrt(v[n]) + floor);
    }
  }
  table.set_stepped(row, step);
}

// Steps a row whose parameters are `now` by `gradient`; decay1 and decay2 are those of its moments
// over the steps that it idled.
template <class S, class Width>
HPCNCF_INLINE void step_row(Width width, const Update<S>& by, S* __restrict row,
                            const S* __restrict now, const S* __restrict gradient, S decay1,
                            S decay2) {
  if (by.rule == Rule::SGD) {
    for (int n = 0; n < width; ++n) row[n] = now[n] - by.rate * gradient[n];
    return;
  }
  const S keep1 = by.b1 * decay1, keep2 = by.b2 * decay2;
  const S take1 = by.take1, take2 = by.take2;
  const S rate = by.rate, floor = by.floor;
  S *m = row + width, *v = row + 2 * width;
  for (int n = 0; n < width; ++n) {
    S g = gradient[n];
    S first = keep1 * m[n] + take1 * g, second = keep2 * v[n] + take2 * g * g;
    m[n] = first;
    v[n] = second;
    row[n] = now[n] - rate * first / (std::sqrt(second) + floor);
  }
}

}  // namespace hpcncf
