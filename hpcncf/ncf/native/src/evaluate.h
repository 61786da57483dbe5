// Ranks of held-out items. The item half of layer 1 is computed once for all items, and lies with
// the item's GMF embedding: all that a pair needs of its item is in one place.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "engine.h"

namespace hpcncf {

// Rows to rank, and their candidates: the given negatives, or every item (negatives null) but the
// user's other training items.
struct Test {
  int64_t rows;
  const int32_t *users, *items;
  const float* context;
  const int32_t* negatives;
  int64_t each;  // negatives of a row
};

struct NothingBetween {
  void operator()() const {}
};

// One thread's memory for scoring one user's candidates.
template <class S>
class Scorer {
 public:
  Scorer(const Shape& shape, const Dense<S>& dense, const S* halves)
      : shape_(shape), dense_(dense), halves_(halves), stride_(half_stride(shape)) {
    inputs_.resize(size_t(BLOCK) * shape.shared());
    mine_.resize(size_t(BLOCK) * shape.layers[0].out);
    for (const Layer& layer : shape.layers)
      outputs_.push_back(std::make_unique<Numbers<S>>(size_t(TILE) * layer.out));
  }

  static int half_stride(const Shape& shape) {
    return shape.layers[0].out + padded(shape.gmf);
  }

  // Has the candidates fetched that are to be scored after the present ones.
  void ask(const int32_t* candidates, int64_t count) const {
    for (int64_t n = 0; n < count; ++n)
      prefetch_lines(halves_ + size_t(candidates[n]) * stride_, stride_ * sizeof(S));
  }

  // The part of layer 1 that all candidates share.
  void begin(const S* user, const float* context) {
    user_ = user;
    std::memcpy(inputs_.data(), user, shape_.mlp * sizeof(S));
    for (int n = 0; n < shape_.context; ++n) inputs_[shape_.mlp + n] = S(context[n]);
    const S *input = inputs_.data(), *bias = dense_.bias(0);
    S* mine = mine_.data();
    NothingBetween none;
    const int columns = shape_.layers[0].out;
    rows_product<S>(
        1, shape_.shared(), dense_.weights(0), columns, [=](int) { return input; },
        [=](auto v, int, int column) { return load<decltype(v)>(bias + column); },
        [=](int row, int column, auto sum) { store(mine + row * columns + column, sum); }, none);
  }

  void score(const int32_t* candidates, int64_t count, S* scores) {
    for (int64_t from = 0; from < count; from += TILE)
      score_tile(candidates + from, int(std::min<int64_t>(TILE, count - from)), scores + from);
  }

 private:
  using V = Vector<S, PAD>;

  void score_tile(const int32_t* candidates, int count, S* scores) {
    first_layer(candidates, count);
    NothingBetween none;
    for (size_t l = 1; l < shape_.layers.size(); ++l) {
      const int columns = shape_.layers[l].out, below = shape_.layers[l - 1].out;
      const S *input = outputs_[l - 1]->data(), *bias = dense_.bias(int(l));
      S* output = outputs_[l]->data();
      rows_product<S>(
          count, shape_.layers[l].in, dense_.weights(int(l)), columns,
          [=](int n) { return input + size_t(n) * below; },
          [=](auto v, int, int column) { return load<decltype(v)>(bias + column); },
          [=](int n, int column, auto sum) {
            store(output + size_t(n) * columns + column, relu(sum));
          },
          none);
    }
    for (int n = 0; n < count; ++n) scores[n] = logit(candidates[n], n);
  }

  void first_layer(const int32_t* candidates, int count) {
    const int columns = shape_.layers[0].out;
    S* output = outputs_[0]->data();
    for (int n = 0; n < count; ++n) {
      const S* half = halves_ + size_t(candidates[n]) * stride_;
      for (int c = 0; c < columns; c += PAD)
        store(output + size_t(n) * columns + c,
              relu(load<V>(mine_.data() + c) + load<V>(half + c)));
    }
  }

  S logit(int32_t candidate, int n) const {
    const S *weights = dense_.output();
    const S* item = halves_ + size_t(candidate) * stride_ + shape_.layers[0].out;
    const int gmf = padded(shape_.gmf), last = shape_.layers.back().out;
    const S *user = user_ + shape_.gmf_at(), *top = outputs_.back()->data() + size_t(n) * last;
    V sum{};
    for (int c = 0; c < gmf; c += PAD)
      sum += load<V>(user + c) * load<V>(item + c) * load<V>(weights + c);
    for (int c = 0; c < last; c += PAD) sum += load<V>(top + c) * load<V>(weights + gmf + c);
    return weights[gmf + last] + lanes_sum<S>(sum);
  }

  const Shape& shape_;
  const Dense<S>& dense_;
  const S* halves_;
  const int stride_;
  const S* user_ = nullptr;
  Numbers<S> inputs_, mine_;
  std::vector<std::unique_ptr<Numbers<S>>> outputs_;
};

template <class S>
class Evaluation {
 public:
  // All rows must have been settled.
  explicit Evaluation(Engine<S>& engine)
      : engine_(engine),
        shape_(engine.shape()),
        stride_(Scorer<S>::half_stride(shape_)),
        halves_(size_t(engine.rows.items.rows()) * stride_) {
    const int64_t parts = (engine.rows.items.rows() + ITEMS - 1) / ITEMS;
    engine.pool().run(int(parts), [&](int part, int) { item_halves(int64_t(part) * ITEMS); });
    all_.resize(engine.rows.items.rows());
    std::iota(all_.begin(), all_.end(), 0);
  }

  // The number of candidates that do not score strictly less than each row's own item.
  void run(const Test& test, int32_t* ranks) {
    const int threads = engine_.pool().threads();
    const int64_t most = test.negatives ? test.each + 1 : engine_.rows.items.rows();
    std::vector<std::unique_ptr<Scorer<S>>> scorers;
    std::vector<Numbers<S>> scores(threads);
    std::vector<std::vector<int32_t>> candidates(threads);
    for (int thread = 0; thread < threads; ++thread) {
      scorers.push_back(std::make_unique<Scorer<S>>(shape_, engine_.dense, halves_.data()));
      scores[thread].resize(most);
      candidates[thread].resize(test.each + 1);
    }
    const int64_t rows_each = std::max<int64_t>(1, test.rows / MOST_PARTS + 1);
    engine_.pool().run(int((test.rows + rows_each - 1) / rows_each), [&](int part, int thread) {
      const int64_t last = std::min(test.rows, (part + 1) * rows_each);
      for (int64_t row = part * rows_each; row < last; ++row) {
        const int64_t user = test.users[row];
        if (test.negatives && row + 1 < last)
          scorers[thread]->ask(test.negatives + (row + 1) * test.each, test.each);
        scorers[thread]->begin(engine_.rows.users.row(user), test.context + row * shape_.context);
        ranks[row] = test.negatives
                         ? among_negatives(test, row, *scorers[thread], candidates[thread].data(),
                                           scores[thread].data())
                         : among_all(test, row, *scorers[thread], scores[thread].data());
      }
    });
  }

 private:
  static constexpr int64_t ITEMS = 256, MOST_PARTS = 4096;

  void item_halves(int64_t first) {
    const int columns = shape_.layers[0].out;
    const int rows = int(std::min(ITEMS, engine_.rows.items.rows() - first));
    const Table<S>& items = engine_.rows.items;
    const int stride = stride_, gmf = padded(shape_.gmf);
    S* halves = halves_.data() + first * stride;
    for (int n = 0; n < rows; ++n)
      std::memcpy(halves + size_t(n) * stride + columns, items.row(first + n) + shape_.gmf_at(),
                  gmf * sizeof(S));
    NothingBetween none;
    rows_product<S>(
        rows, shape_.mlp, engine_.dense.item_weights(), columns,
        [&](int n) { return items.row(first + (n < rows ? n : 0)); },
        [](auto v, int, int) { return v; },
        [=](int n, int column, auto sum) {
          if (n < rows) store(halves + size_t(n) * stride + column, sum);
        },
        none);
  }

  int32_t among_negatives(const Test& test, int64_t row, Scorer<S>& scorer, int32_t* candidates,
                          S* scores) const {
    candidates[0] = test.items[row];
    std::copy_n(test.negatives + row * test.each, test.each, candidates + 1);
    scorer.score(candidates, test.each + 1, scores);
    int32_t ahead = 0;
    for (int64_t n = 1; n <= test.each; ++n) ahead += !(scores[n] < scores[0]);
    return ahead;
  }

  int32_t among_all(const Test& test, int64_t row, Scorer<S>& scorer, S* scores) const {
    const int64_t count = engine_.rows.items.rows();
    const int32_t own = test.items[row];
    scorer.score(all_.data(), count, scores);
    const S mine = scores[own];
    int32_t ahead = 0;
    for (int64_t n = 0; n < count; ++n) ahead += !(scores[n] < mine);
    ahead -= !(mine < mine);
    const Data& data = engine_.data();
    const int64_t user = test.users[row];
    for (int64_t n = data.indptr[user]; n < data.indptr[user + 1]; ++n)
      if (data.positives[n] != own) ahead -= !(scores[data.positives[n]] < mine);
    return ahead;
  }

  Engine<S>& engine_;
  const Shape& shape_;
  const int stride_;
  Pages<S> halves_;
  std::vector<int32_t> all_;
};

}  // namespace hpcncf
