// The matrix products of a tile: a block of rows by two vectors of columns stays in registers.
#pragma once

#include "vectors.h"

namespace hpcncf {

// Rows [r][K] times w [K][columns]: for R rows from `first` on and C vectors of L columns from
// `column` on. `input(row)` points to a row, `start<V>(row, column)` is what is added to,
// `done(row, column, V)` takes the sums.
template <class S, int L, int C, int R, class Input, class Start, class Done>
HPCNCF_INLINE void rows_block(int first, int column, int K, const S* w, int stride, Input input,
                              Start start, Done done) {
  using V = Vector<S, L>;
  V sum[R][C];
  const S* x[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    x[r] = input(first + r);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = start(V{}, first + r, column + c * L);
  }
  const S* weights = w + column;
  for (int k = 0; k < K; ++k, weights += stride) {
    V b[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) b[c] = load<V>(weights + c * L);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      V a = broadcast<V>(x[r][k]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] += a * b[c];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) done(first + r, column + c * L, sum[r][c]);
}

// K rows of `gradient` [K][columns] += the sum over n samples of x[sample][k] * d[sample]; what a
// tile's first product finds there is not read. `input(sample)` points to the K numbers.
template <class S, int L, int C, int R, class Input>
HPCNCF_INLINE void outer_block(int first, int column, int n, const S* d, int stride, Input input,
                               S* gradient, int columns, bool add) {
  using V = Vector<S, L>;
  V sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      sum[r][c] = add ? load<V>(gradient + (first + r) * columns + column + c * L) : V{};
  const S* deltas = d + column;
  for (int sample = 0; sample < n; ++sample, deltas += stride) {
    const S* x = input(sample) + first;
    V b[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) b[c] = load<V>(deltas + c * L);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      V a = broadcast<V>(x[r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] += a * b[c];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      store(gradient + (first + r) * columns + column + c * L, sum[r][c]);
}

// Calls `block<L, C>(column)` for pieces that cover `columns`, a multiple of PAD: the widest first.
template <class S, class Block>
HPCNCF_INLINE void over_columns(int columns, Block block) {
  constexpr int L = LANES<S>;
  int column = 0;
  for (; column + 2 * L <= columns; column += 2 * L) block.template run<L, 2>(column);
  for (; column + L <= columns; column += L) block.template run<L, 1>(column);
  if constexpr (L > PAD)
    for (; column < columns; column += PAD) block.template run<PAD, 1>(column);
}

template <class S, class Input, class Start, class Done, class Between>
struct RowsProduct {
  int rows, K;
  const S* w;
  int stride;
  Input input;
  Start start;
  Done done;
  Between& between;
  template <int L, int C>
  HPCNCF_INLINE void run(int column) const {
    for (int row = 0; row < rows; row += BLOCK) {
      rows_block<S, L, C, BLOCK>(row, column, K, w, stride, input, start, done);
      between();
    }
  }
};

// The product over all columns. `rows` is rounded up to BLOCK: so many must be readable. `between`
// is called after each block.
template <class S, class Input, class Start, class Done, class Between>
HPCNCF_INLINE void rows_product(int rows, int K, const S* w, int columns, Input input, Start start,
                                Done done, Between& between) {
  over_columns<S>(columns, RowsProduct<S, Input, Start, Done, Between>{rows, K, w, columns, input,
                                                                       start, done, between});
}

template <class S, class Input, class Start, class Done>
HPCNCF_INLINE void rows_product(int rows, int K, const S* w, int columns, Input input, Start start,
                                Done done) {
  const auto nothing = [] {};
  rows_product<S>(rows, K, w, columns, input, start, done, nothing);
}

template <class S, class Input>
struct OuterProduct {
  int K, n;
  const S* d;
  int columns;
  Input input;
  S* gradient;
  bool add;
  template <int L, int C>
  HPCNCF_INLINE void run(int column) const {
    int k = 0;
    for (; k + BLOCK <= K; k += BLOCK)
      outer_block<S, L, C, BLOCK>(k, column, n, d, columns, input, gradient, columns, add);
    for (; k < K; ++k)
      outer_block<S, L, C, 1>(k, column, n, d, columns, input, gradient, columns, add);
  }
};

template <class S, class Input>
HPCNCF_INLINE void outer_product(int K, int n, const S* d, int columns, Input input, S* gradient,
                                 bool add) {
  over_columns<S>(columns, OuterProduct<S, Input>{K, n, d, columns, input, gradient, add});
}

}  // namespace hpcncf
