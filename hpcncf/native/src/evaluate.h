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

// One thread's memory for scoring one user's candidates.
template <class S>
class Scorer {
  // At once: their values and those that are fetched meanwhile stay in the first cache.
  static constexpr int PAIRS = 3 * BLOCK;

 public:
  Scorer(const Shape& shape, const Dense<S>& dense, const Table<S>& users, const S* halves)
      : shape_(shape),
        dense_(dense),
        users_(users),
        halves_(halves),
        stride_(half_stride(shape)) {
    inputs_.resize(size_t(BLOCK) * shape.shared());
    row_halves_.resize(size_t(BLOCK) * shape.layers[0].out);
    for (const Layer& layer : shape.layers)
      outputs_.push_back(std::make_unique<Numbers<S>>(size_t(PAIRS) * layer.out));
  }

  static int half_stride(const Shape& shape) {
    return shape.layers[0].out + padded(shape.gmf);
  }

  // These candidates are scored after the present ones: they are fetched meanwhile.
  void expect(const int32_t* candidates, int64_t count) {
    next_ = candidates;
    expected_ = count;
  }

  // Of up to BLOCK test rows, the part of layer 1 that all candidates of a row share.
  void begin(int rows, const int32_t* users, const float* context) {
    const int shared = shape_.shared(), columns = shape_.layers[0].out;
    for (int n = 0; n < rows; ++n) {
      S* input = inputs_.data() + size_t(n) * shared;
      std::memcpy(input, users_.row(users[n]), shape_.mlp * sizeof(S));
      for (int c = 0; c < shape_.context; ++c)
        input[shape_.mlp + c] = S(context[size_t(n) * shape_.context + c]);
    }
    const S *input = inputs_.data(), *bias = dense_.bias(0);
    S* halves = row_halves_.data();
    rows_product<S>(
        rows, shared, dense_.weights(0), columns, [=](int n) { return input + size_t(n) * shared; },
        [=](auto v, int, int column) { return load<decltype(v)>(bias + column); },
        [=](int n, int column, auto sum) { store(halves + size_t(n) * columns + column, sum); });
  }

  // Of these, the row whose candidates are scored from now on.
  void turn_to(int row, int32_t user) {
    mine_ = row_halves_.data() + size_t(row) * shape_.layers[0].out;
    user_ = users_.row(user);
  }

  void score(const int32_t* candidates, int64_t count, S* scores) {
    for (int64_t from = 0; from < count; from += PAIRS)
      score_tile(candidates + from, int(std::min<int64_t>(PAIRS, count - from)), scores + from);
  }

 private:
  using V = Vector<S, PAD>;

  void score_tile(const int32_t* candidates, int count, S* scores) {
    first_layer(candidates, count);
    const int products = int(shape_.layers.size()) - 1;
    auto between = [this, products] { fetch((BLOCK + products - 1) / products); };
    if (products == 0) fetch(count);
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
          between);
    }
    for (int n = 0; n < count; ++n) scores[n] = logit(candidates[n], n);
  }

  // A few at a time: a core that asks for many lines at once does nothing else until they come.
  void fetch(int64_t count) {
    for (; count > 0 && expected_ > 0; --count, --expected_)
      prefetch_lines(halves_ + size_t(*next_++) * stride_, stride_ * sizeof(S));
  }

  void first_layer(const int32_t* candidates, int count) {
    const int columns = shape_.layers[0].out;
    S* output = outputs_[0]->data();
    for (int n = 0; n < count; ++n) {
      const S* half = halves_ + size_t(candidates[n]) * stride_;
      for (int c = 0; c < columns; c += PAD)
        store(output + size_t(n) * columns + c,
              relu(load<V>(mine_ + c) + load<V>(half + c)));
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
  const Table<S>& users_;
  const S* halves_;
  const int stride_;
  const S *mine_ = nullptr, *user_ = nullptr;
  const int32_t* next_ = nullptr;
  int64_t expected_ = 0;
  Numbers<S> inputs_, row_halves_;
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
    std::vector<std::unique_ptr<Thread>> threads;
    for (int thread = 0; thread < engine_.pool().threads(); ++thread)
      threads.push_back(std::make_unique<Thread>(*this, test));
    const int64_t least = test.negatives ? BLOCK : 1;  // all items of a row are work enough
    const int64_t each = (test.rows / MOST_PARTS / least + 1) * least;
    engine_.pool().run(int((test.rows + each - 1) / each), [&](int part, int thread) {
      for (int64_t row = part * each; row < std::min(test.rows, (part + 1) * each); row += BLOCK)
        block(test, row, std::min({row + BLOCK, (part + 1) * each, test.rows}), *threads[thread],
              ranks);
    });
  }

 private:
  static constexpr int64_t ITEMS = 256, MOST_PARTS = 4096;

  struct Thread {
    Scorer<S> scorer;
    Numbers<S> scores;
    std::vector<int32_t> candidates;
    Thread(const Evaluation& of, const Test& test)
        : scorer(of.shape_, of.engine_.dense, of.engine_.rows.users, of.halves_.data()),
          scores(test.negatives ? test.each + 1 : of.all_.size()),
          candidates(test.each + 1) {}
  };

  // Test rows first to last, BLOCK at most.
  void block(const Test& test, int64_t first, int64_t last, Thread& mine, int32_t* ranks) const {
    const Table<S>& users = engine_.rows.users;
    mine.scorer.begin(int(last - first), test.users + first, test.context + first * shape_.context);
    for (int64_t row = first; row < last; ++row) {
      if (row + BLOCK < test.rows)
        prefetch_lines(users.row(test.users[row + BLOCK]), shape_.width() * sizeof(S));
      if (test.negatives && row + 1 < test.rows)
        mine.scorer.expect(test.negatives + (row + 1) * test.each, test.each);
      mine.scorer.turn_to(int(row - first), test.users[row]);
      ranks[row] = test.negatives ? among_negatives(test, row, mine) : among_all(test, row, mine);
    }
  }

  void item_halves(int64_t first) {
    const int columns = shape_.layers[0].out;
    const int rows = int(std::min(ITEMS, engine_.rows.items.rows() - first));
    const Table<S>& items = engine_.rows.items;
    const int stride = stride_, gmf = padded(shape_.gmf);
    S* halves = halves_.data() + first * stride;
    for (int n = 0; n < rows; ++n)
      std::memcpy(halves + size_t(n) * stride + columns, items.row(first + n) + shape_.gmf_at(),
                  gmf * sizeof(S));
    rows_product<S>(
        rows, shape_.mlp, engine_.dense.item_weights(), columns,
        [&](int n) { return items.row(first + (n < rows ? n : 0)); },
        [](auto v, int, int) { return v; },
        [=](int n, int column, auto sum) {
          if (n < rows) store(halves + size_t(n) * stride + column, sum);
        });
  }

  int32_t among_negatives(const Test& test, int64_t row, Thread& mine) const {
    S* scores = mine.scores.data();
    mine.candidates[0] = test.items[row];
    std::copy_n(test.negatives + row * test.each, test.each, mine.candidates.begin() + 1);
    mine.scorer.score(mine.candidates.data(), test.each + 1, scores);
    int32_t ahead = 0;
    for (int64_t n = 1; n <= test.each; ++n) ahead += !(scores[n] < scores[0]);
    return ahead;
  }

  int32_t among_all(const Test& test, int64_t row, Thread& mine) const {
    const int64_t count = engine_.rows.items.rows();
    const S* scores = mine.scores.data();
    const int32_t own = test.items[row];
    mine.scorer.score(all_.data(), count, mine.scores.data());
    const S bar = scores[own];
    int32_t ahead = -1;  // the item itself
    for (int64_t n = 0; n < count; ++n) ahead += !(scores[n] < bar);
    const Data& data = engine_.data();
    const int64_t user = test.users[row];
    for (int64_t n = data.indptr[user]; n < data.indptr[user + 1]; ++n)
      if (data.positives[n] != own) ahead -= !(scores[data.positives[n]] < bar);
    return ahead;
  }

  Engine<S>& engine_;
  const Shape& shape_;
  const int stride_;
  Pages<S> halves_;
  std::vector<int32_t> all_;
};

}  // namespace hpcncf
