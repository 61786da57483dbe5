// The model's sizes, and where its numbers lie.
#pragma once

#include <vector>

#include "vectors.h"

namespace hpcncf {

constexpr int MOST_LAYERS = 16;

struct Layer {
  int in, out;  // out is padded; in is not, for only columns are read as vectors
  size_t weights, bias;  // offsets: weights [in][out], transposed to torch's
};

// The first layer's inputs are the user's MLP embedding, the context, the item's MLP embedding: so
// the part that a positive shares with its negatives is one matrix.
struct Shape {
  int gmf, mlp, context, negatives;
  std::vector<Layer> layers;
  size_t output;      // offset of the last layer: [padded gmf], [padded last width], bias
  size_t parameters;  // of all dense layers, with padding

  Shape(int gmf, int mlp, int context, int negatives, const int* widths, int depth)
      : gmf(gmf), mlp(mlp), context(context), negatives(negatives) {
    size_t at = 0;
    int in = 2 * mlp + context;
    for (int depth_at = 0; depth_at < depth; ++depth_at) {
      Layer layer{in, padded(widths[depth_at]), at, 0};
      layer.bias = at + size_t(layer.in) * layer.out;
      at = layer.bias + layer.out;
      layers.push_back(layer);
      in = widths[depth_at];
    }
    output = at;
    parameters = at + padded(gmf) + layers.back().out + PAD;
  }

  int each() const { return 1 + negatives; }
  int shared() const { return mlp + context; }           // the first layer's inputs of a positive
  size_t item_weights() const { return size_t(shared()) * layers[0].out; }

  // A row's parameters: MLP embedding, GMF embedding, both padded. Its moments lie behind them.
  int gmf_at() const { return padded(mlp); }
  int width() const { return padded(mlp) + padded(gmf); }
};

}  // namespace hpcncf
