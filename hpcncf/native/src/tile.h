// Forward and backward of a tile: a few positives and their negatives, small enough for the cache.
#pragma once

#include <memory>
#include <vector>

#include "batch.h"
#include "dense.h"
#include "loss.h"
#include "products.h"

namespace hpcncf {

constexpr int TILE = 80;  // instances, about

inline int tile_positives(int each) {
  int blocks = TILE / each / PAD;  // whole blocks, so that only the last tile has padding rows
  return (blocks > 1 ? blocks : 1) * PAD;
}

// What a batch's tiles read and write; none writes what another reads.
template <class S>
struct Work {
  const Shape& shape;
  const Dense<S>& dense;
  Batch<S>& batch;
  const S *users, *items;              // [distinct row][width]: parameters as of this step
  S *user_gradients, *item_gradients;  // [positive][width], [positive][1 + negatives][width]
  S scale;                             // of the loss: 1 / instances of all ranks
};

// One thread's memory for a tile.
template <class S>
class Tile {
 public:
  explicit Tile(const Shape& shape) : shape_(shape), each_(shape.each()) {
    const int positives = tile_positives(each_), instances = positives * each_;
    first_.resize(size_t(positives) * shape.layers[0].out);
    first_deltas_.resize(first_.size());
    outputs_.resize(shape.layers.size());
    deltas_.resize(shape.layers.size());
    for (size_t l = 0; l < shape.layers.size(); ++l) {
      outputs_[l] = std::make_unique<Numbers<S>>(size_t(instances) * shape.layers[l].out);
      deltas_[l] = std::make_unique<Numbers<S>>(size_t(instances) * shape.layers[l].out);
    }
    nowhere_.resize(shape.width());
    items_.resize(instances);
    users_.resize(positives);
    owner_.resize(instances);
    for (int n = 0; n < instances; ++n) owner_[n] = n / each_;
    logits_.resize(instances);
    slopes_.resize(instances);
  }

  // Positives `from` to `to` of the batch. Their dense gradients go to `gradients`, or are added to
  // what is there. Returns the sum of the losses.
  double run(const Work<S>& work, int from, int to, S* gradients, bool add) {
    positives_ = to - from;
    instances_ = positives_ * each_;
    gather(work, from);
    forward(work, from);
    score(work);
    double loss = cross_entropy(logits_.data(), instances_, each_, work.scale, slopes_.data());
    output_backward(work, from, gradients + shape_.output, add);
    backward(work, gradients, add);
    first_layer_backward(work, from, gradients, add);
    return loss;
  }

 private:
  using V = Vector<S, PAD>;

  void gather(const Work<S>& work, int from) {
    const int width = shape_.width();
    const int32_t* slots = work.batch.distinct_items.slot.data() + size_t(from) * each_;
    for (int n = 0; n < instances_; ++n) items_[n] = work.items + size_t(slots[n]) * width;
    for (size_t n = instances_; n < items_.size(); ++n) items_[n] = nowhere_.data();
    for (int p = 0; p < positives_; ++p) {
      users_[p] = work.users + size_t(work.batch.distinct_users.slot[from + p]) * width;
      std::memcpy(shared(work, from + p), users_[p], shape_.mlp * sizeof(S));
    }
  }

  // The first layer's inputs that a positive shares with its negatives.
  S* shared(const Work<S>& work, int positive) const {
    return work.batch.inputs.data() + size_t(positive) * shape_.shared();
  }

  void forward(const Work<S>& work, int from) {
    const auto& layers = shape_.layers;
    const int columns = layers[0].out;
    const S* bias = work.dense.bias(0);
    S* halves = first_.data();
    rows_product<S>(
        positives_, shape_.shared(), work.dense.weights(0), columns,
        [&](int p) { return shared(work, from + p); },
        [=](auto v, int, int column) { return load<decltype(v)>(bias + column); },
        [=](int p, int column, auto sum) { store(halves + size_t(p) * columns + column, sum); });
    S* output = outputs_[0]->data();
    const int* owner = owner_.data();
    rows_product<S>(
        instances_, shape_.mlp, work.dense.item_weights(), columns,
        [&](int n) { return items_[n]; },
        [=](auto v, int n, int column) {
          return load<decltype(v)>(halves + size_t(owner[n]) * columns + column);
        },
        [=](int n, int column, auto sum) {
          store(output + size_t(n) * columns + column, relu(sum));
        });
    for (size_t l = 1; l < layers.size(); ++l) layer_forward(work, int(l));
  }

  void layer_forward(const Work<S>& work, int l) {
    const int columns = shape_.layers[l].out, below = shape_.layers[l - 1].out;
    const S *input = outputs_[l - 1]->data(), *bias = work.dense.bias(l);
    S* output = outputs_[l]->data();
    rows_product<S>(
        instances_, shape_.layers[l].in, work.dense.weights(l), columns,
        [=](int n) { return input + size_t(n) * below; },
        [=](auto v, int, int column) { return load<decltype(v)>(bias + column); },
        [=](int n, int column, auto sum) {
          store(output + size_t(n) * columns + column, relu(sum));
        });
  }

  void score(const Work<S>& work) {
    const S* weights = work.dense.output();
    const int gmf = padded(shape_.gmf), last = shape_.layers.back().out;
    const S* top = outputs_.back()->data();
    for (int n = 0; n < instances_; ++n) {
      const S *user = users_[owner_[n]] + shape_.gmf_at(), *item = items_[n] + shape_.gmf_at();
      V sum{};
      for (int c = 0; c < gmf; c += PAD)
        sum += load<V>(user + c) * load<V>(item + c) * load<V>(weights + c);
      for (int c = 0; c < last; c += PAD)
        sum += load<V>(top + size_t(n) * last + c) * load<V>(weights + gmf + c);
      logits_[n] = weights[gmf + last] + lanes_sum<S>(sum);
    }
  }

  // The GMF part and the last layer's side of the MLP.
  void output_backward(const Work<S>& work, int from, S* gradient, bool add) {
    const S* weights = work.dense.output();
    const int gmf = padded(shape_.gmf), last = shape_.layers.back().out;
    if (!add) std::memset(gradient, 0, (gmf + last + PAD) * sizeof(S));
    for (int n = 0; n < instances_; ++n) gradient[gmf + last] += slopes_[n];
    for (int c = 0; c < gmf; c += PAD) gmf_backward(work, from, c, load<V>(weights + c), gradient);
    const S* top = outputs_.back()->data();
    S* deltas = deltas_.back()->data();
    for (int c = 0; c < last; c += PAD) {
      const V weight = load<V>(weights + gmf + c);
      V sum = load<V>(gradient + gmf + c);
      for (int n = 0; n < instances_; ++n) {
        const V output = load<V>(top + size_t(n) * last + c), slope = broadcast<V>(slopes_[n]);
        sum += slope * output;
        store(deltas + size_t(n) * last + c, gated(slope * weight, output));
      }
      store(gradient + gmf + c, sum);
    }
  }

  void gmf_backward(const Work<S>& work, int from, int c, V weight, S* gradient) {
    const int at = shape_.gmf_at() + c, width = shape_.width();
    V sum = load<V>(gradient + c);
    S* item_gradient = work.item_gradients + size_t(from) * each_ * width + at;
    for (int p = 0; p < positives_; ++p) {
      const V user = load<V>(users_[p] + at);
      V user_sum{};
      for (int n = p * each_; n < (p + 1) * each_; ++n) {
        const V item = load<V>(items_[n] + at), slope = broadcast<V>(slopes_[n]);
        const V slope_item = slope * item;
        sum += slope_item * user;
        user_sum += slope_item * weight;
        store(item_gradient + size_t(n) * width, slope * weight * user);
      }
      store(work.user_gradients + size_t(from + p) * width + at, user_sum);
    }
    store(gradient + c, sum);
  }

  void backward(const Work<S>& work, S* gradients, bool add) {
    for (int l = int(shape_.layers.size()) - 1; l > 0; --l) {
      const Layer &layer = shape_.layers[l], &below = shape_.layers[l - 1];
      const S *deltas = deltas_[l]->data(), *input = outputs_[l - 1]->data();
      outer_product<S>(
          layer.in, instances_, deltas, layer.out,
          [=](int n) { return input + size_t(n) * below.out; }, gradients + layer.weights, add);
      bias_gradient(deltas, instances_, layer.out, gradients + layer.bias, add);
      S* result = deltas_[l - 1]->data();
      const int columns = below.out;
      rows_product<S>(
          instances_, layer.out, work.dense.transposed(l), columns,
          [=](int n) { return deltas + size_t(n) * layer.out; },
          [](auto v, int, int) { return v; },
          [=](int n, int column, auto sum) {
            const size_t at = size_t(n) * columns + column;
            store(result + at, gated(sum, load<decltype(sum)>(input + at)));
          });
    }
  }

  void bias_gradient(const S* deltas, int rows, int columns, S* gradient, bool add) {
    for (int c = 0; c < columns; c += PAD) {
      V sum = add ? load<V>(gradient + c) : V{};
      for (int n = 0; n < rows; ++n) sum += load<V>(deltas + size_t(n) * columns + c);
      store(gradient + c, sum);
    }
  }

  void first_layer_backward(const Work<S>& work, int from, S* gradients, bool add) {
    const int columns = shape_.layers[0].out, width = shape_.width(), mlp = padded(shape_.mlp);
    const S* deltas = deltas_[0]->data();
    sum_over_instances(deltas, columns);
    const S* sums = first_deltas_.data();
    S* weights = gradients + shape_.layers[0].weights;
    outer_product<S>(
        shape_.mlp, instances_, deltas, columns, [&](int n) { return items_[n]; },
        weights + shape_.item_weights(), add);
    outer_product<S>(
        shape_.shared(), positives_, sums, columns,
        [&](int p) { return shared(work, from + p); }, weights, add);
    bias_gradient(sums, positives_, columns, gradients + shape_.layers[0].bias, add);
    S* item_gradient = work.item_gradients + size_t(from) * each_ * width;
    S* user_gradient = work.user_gradients + size_t(from) * width;
    rows_product<S>(
        instances_, columns, work.dense.transposed_item(), mlp,
        [=](int n) { return deltas + size_t(n) * columns; }, [](auto v, int, int) { return v; },
        [=](int n, int c, auto sum) { store(item_gradient + size_t(n) * width + c, sum); });
    rows_product<S>(
        positives_, columns, work.dense.transposed_user(), mlp,
        [=](int p) { return sums + size_t(p) * columns; }, [](auto v, int, int) { return v; },
        [=](int p, int c, auto sum) { store(user_gradient + size_t(p) * width + c, sum); });
  }

  // A positive's part of the first layer is in all its instances' sums.
  void sum_over_instances(const S* deltas, int columns) {
    for (int p = 0; p < positives_; ++p)
      for (int c = 0; c < columns; c += PAD) {
        V sum{};
        for (int n = p * each_; n < (p + 1) * each_; ++n)
          sum += load<V>(deltas + size_t(n) * columns + c);
        store(first_deltas_.data() + size_t(p) * columns + c, sum);
      }
  }

  const Shape& shape_;
  const int each_;
  int positives_ = 0, instances_ = 0;
  Numbers<S> first_, first_deltas_, nowhere_, logits_, slopes_;
  std::vector<std::unique_ptr<Numbers<S>>> outputs_, deltas_;  // of each layer [instance][out]
  std::vector<const S*> users_, items_;
  std::vector<int> owner_;
};

}  // namespace hpcncf
