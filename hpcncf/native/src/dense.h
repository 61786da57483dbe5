// The dense layers: their parameters and moments, and the transposed weights that backward reads.
#pragma once

#include <algorithm>

#include "shape.h"
#include "table.h"

namespace hpcncf {

template <class S>
class Dense {
 public:
  Numbers<S> parameters, first, second;  // each laid out as Shape says

  explicit Dense(const Shape& shape)
      : parameters(shape.parameters),
        first(shape.parameters),
        second(shape.parameters),
        shape_(shape) {
    const auto& layers = shape.layers;
    transposed_.push_back(0);
    size_t at = 0;
    for (size_t l = 1; l < layers.size(); ++l) {
      transposed_.push_back(at);
      at += size_t(layers[l].out) * layers[l - 1].out;
    }
    user_ = at;
    item_ = at + size_t(layers[0].out) * padded(shape.mlp);
    turned_.resize(item_ + size_t(layers[0].out) * padded(shape.mlp));
  }

  const S* weights(int layer) const { return parameters.data() + shape_.layers[layer].weights; }
  const S* bias(int layer) const { return parameters.data() + shape_.layers[layer].bias; }
  const S* item_weights() const { return weights(0) + shape_.item_weights(); }
  const S* output() const { return parameters.data() + shape_.output; }

  // [out][out of the layer below], layer 1 and up; [out][padded mlp] of the first layer.
  const S* transposed(int layer) const { return turned_.data() + transposed_[layer]; }
  const S* transposed_user() const { return turned_.data() + user_; }
  const S* transposed_item() const { return turned_.data() + item_; }

  // The step is split into pieces of so many numbers, for threads to share.
  static constexpr size_t PIECE = 1024;
  int pieces() const { return int((shape_.parameters + PIECE - 1) / PIECE); }

  // The sum of several gradients, in their order, of one piece; to its place in `all`.
  void sum(int piece, const S* const* gradients, int count, S* all) const {
    const size_t from = size_t(piece) * PIECE, some = numbers(piece);
    std::memset(all + from, 0, some * sizeof(S));
    for (int which = 0; which < count; ++which)
      for (size_t n = from; n < from + some; ++n) all[n] += gradients[which][n];
  }

  // Steps one piece by the sum of these gradients, in their order.
  void step(int piece, const Update<S>& by, const S* const* gradients, int parts) {
    const size_t from = size_t(piece) * PIECE, count = numbers(piece);
    alignas(64) S sum[PIECE] = {};
    for (int part = 0; part < parts; ++part) {
      const S* more = gradients[part] + from;
      for (size_t n = 0; n < count; ++n) sum[n] += more[n];
    }
    S* __restrict p = parameters.data() + from;
    S* __restrict m = first.data() + from;
    S* __restrict v = second.data() + from;
    if (by.rule == Rule::SGD) {
      for (size_t n = 0; n < count; ++n) p[n] -= by.rate * sum[n];
      return;
    }
    for (size_t n = 0; n < count; ++n) {
      m[n] = by.b1 * m[n] + by.take1 * sum[n];
      v[n] = by.b2 * v[n] + by.take2 * sum[n] * sum[n];
      p[n] -= by.rate * m[n] / (std::sqrt(v[n]) + by.floor);
    }
  }

  // The transposed matrices, each made anew before a backward pass: those of the layers from the
  // second on, then the user's and the item's part of the first.
  int matrices() const { return int(shape_.layers.size()) + 1; }
  void turn(int matrix) {
    const auto& layers = shape_.layers;
    const int l = matrix + 1, width = padded(shape_.mlp), out = layers[0].out;
    if (l < int(layers.size()))
      turn(weights(l), layers[l].in, layers[l].out, turned_.data() + transposed_[l],
           layers[l - 1].out);
    else if (l == int(layers.size()))
      turn(weights(0), shape_.mlp, out, turned_.data() + user_, width);
    else
      turn(item_weights(), shape_.mlp, out, turned_.data() + item_, width);
  }

 private:
  size_t numbers(int piece) const {
    return std::min(PIECE, shape_.parameters - size_t(piece) * PIECE);
  }

  static void turn(const S* from, int rows, int columns, S* to, int stride) {
    for (int first = 0; first < rows; first += PAD)  // pieces that stay in the nearest cache
      for (int column = 0; column < columns; ++column)
        for (int row = first; row < rows && row < first + PAD; ++row)
          to[size_t(column) * stride + row] = from[size_t(row) * columns + column];
  }

  const Shape& shape_;
  std::vector<size_t> transposed_;
  size_t user_, item_;
  Numbers<S> turned_;
};

}  // namespace hpcncf
