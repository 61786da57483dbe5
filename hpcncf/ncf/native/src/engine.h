// One optimiser step: the rows' present values, the tiles, the update. Each task is shared by all
// threads; no result depends on which thread computed it, nor on how many there are.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "pool.h"
#include "tile.h"

namespace hpcncf {

struct Settings {
  int gmf, mlp, context, negatives, depth, threads;
  int widths[MOST_LAYERS];
  Rule rule;
  Adam adam;
  uint64_t seed;
  int64_t most_positives;  // of a step
};

// A span of positions of an epoch's order; stop <= start: none.
struct Span {
  int64_t epoch, start, stop;
};

template <class S>
class Engine {
 public:
  Engine(const Settings& settings, const Data& data)
      : settings_(settings),
        data_(data),
        shape_(settings.gmf, settings.mlp, settings.context, settings.negatives, settings.widths,
               settings.depth),
        users(data.users, shape_.width(), settings.rule),
        items(data.items, shape_.width(), settings.rule),
        dense(shape_),
        idle_(settings.adam),
        pool_(settings.threads),
        order_(settings.seed, 0, data.rows) {
    const size_t most = size_t(settings.most_positives), width = size_t(shape_.width());
    batch_ = std::make_unique<Batch<S>>(shape_, data_, most);
    next_ = std::make_unique<Batch<S>>(shape_, data_, most);
    for (int n = 0; n < pool_.threads(); ++n) tiles_.push_back(std::make_unique<Tile<S>>(shape_));
    const int positives = tile_positives(shape_.each());
    const size_t tiles = (most + positives - 1) / positives;
    gradient_stride_ = (shape_.parameters + 63) / 64 * 64;
    gradients_.resize(std::min<size_t>(tiles, MOST_GROUPS) * gradient_stride_);
    now_[0].resize(most * width);
    now_[1].resize(most * shape_.each() * width);
    row_gradients_[0].resize((most + BLOCK) * width);
    row_gradients_[1].resize((most * shape_.each() + BLOCK) * width);
    losses_.resize(MOST_GROUPS);
  }

  Table<S>& table(int which) { return which == 0 ? users : items; }

  // Steps on the instances at `span`; their loss counts `scale` times. Returns the sum of the
  // losses, unscaled. The instances of `next` are drawn meanwhile.
  double step(const Span& span, S scale, const Span& next) {
    if (!batch_->is(span.epoch, span.start, span.stop)) draw(*batch_, span);
    ++steps;
    read_rows();
    double loss = run_tiles(scale, next);
    update(by());
    std::swap(batch_, next_);
    drawn_ = false;
    return loss;
  }

  // Brings every row to the last step.
  void settle() {
    if (settings_.rule != Rule::ADAM) return;
    idle_.until(steps);
    for (int which = 0; which < 2; ++which) {
      Table<S>& rows = table(which);
      const int64_t parts = (rows.rows() + SETTLED - 1) / SETTLED;
      pool_.run(int(parts), [&](int part, int) {
        const int64_t first = int64_t(part) * SETTLED;
        const int64_t last = std::min<int64_t>(first + SETTLED, rows.rows());
        for (int64_t id = first; id < last; ++id) settle_row(rows, rows.row(id));
      });
    }
  }

  void draw(Batch<S>& batch, const Span& span) {
    if (order_.epoch != span.epoch) order_ = Order(settings_.seed, span.epoch, data_.rows);
    batch.draw(settings_.seed, order_, span.start, span.stop);
  }

  Batch<S>& batch() { return *batch_; }
  const Shape& shape() const { return shape_; }
  const Settings& settings() const { return settings_; }
  const Data& data() const { return data_; }
  Pool& pool() { return pool_; }

 private:
  static constexpr int MOST_GROUPS = 32;
  static constexpr int ROWS = 64;  // of a part
  static constexpr int64_t SETTLED = 4096;

  const Settings settings_;
  const Data data_;
  const Shape shape_;

 public:
  Table<S> users, items;
  Dense<S> dense;
  int64_t steps = 0;

 private:
  Distinct& distinct(int which) {
    return which == 0 ? batch_->distinct_users : batch_->distinct_items;
  }

  Update<S> by() const {
    const Adam& adam = settings_.adam;
    const Rule rule = settings_.rule;
    const S rate = S(rule == Rule::SGD ? adam.lr : adam.rate(steps));
    return {rule,          rate,           S(adam.floor(steps)), S(adam.b1), S(adam.b2),
            S(1 - adam.b1), S(1 - adam.b2), steps};
  }

  // Calls work(table, row) for all distinct rows of the batch, ROWS at a time.
  template <class Body>
  void over_rows(Body body) {
    const int users_parts = parts(distinct(0).count());
    pool_.run(users_parts + parts(distinct(1).count()), [&](int part, int) {
      const int which = part >= users_parts;
      const int first = (part - which * users_parts) * ROWS;
      const int last = std::min(first + ROWS, distinct(which).count());
      body(which, first, last);
    });
  }
  static int parts(int rows) { return (rows + ROWS - 1) / ROWS; }

  void read_rows() {
    if (settings_.rule == Rule::ADAM) idle_.until(steps - 1);
    over_rows([this](int which, int first, int last) {
      Table<S>& rows = table(which);
      const auto& ids = distinct(which).ids;
      const int count = distinct(which).count();
      with_width(rows.width(), [&](auto width) {
        S* now = now_[which].data() + size_t(first) * width;
        for (int n = first; n < last; ++n, now += width) {
          if (n + AHEAD < count) prefetch_lines(rows.row(ids[n + AHEAD]), rows.row_bytes());
          read_row(width, rows, rows.row(ids[n]), now);
        }
      });
    });
  }

  template <class Width>
  HPCNCF_INLINE void read_row(Width width, Table<S>& rows, S* row, S* now) {
    if (settings_.rule != Rule::ADAM) {
      std::memcpy(now, row, width * sizeof(S));
      return;
    }
    if (rows.stepped(row) < Idle<S>::ONE_BY_ONE) first_steps(rows, settings_.adam, row, steps - 1);
    catch_up(width, rows, idle_, row, steps - 1, now);
  }

  double run_tiles(S scale, const Span& next) {
    const int count = batch_->positives(), positives = tile_positives(shape_.each());
    const int tiles = (count + positives - 1) / positives;
    const int per_group = std::max(1, (tiles + MOST_GROUPS - 1) / MOST_GROUPS);
    groups_ = (tiles + per_group - 1) / per_group;
    Work<S> work{shape_,          dense,
                 *batch_,         now_[0].data(),
                 now_[1].data(),  row_gradients_[0].data(),
                 row_gradients_[1].data(), scale};
    pool_.run(groups_ + 1, [&](int part, int thread) {
      if (part == 0) return draw_next(next);
      const int group = part - 1;
      S* gradients = gradients_.data() + group * gradient_stride_;
      double loss = 0;
      for (int tile = group * per_group; tile < std::min(tiles, (group + 1) * per_group); ++tile) {
        auto ahead = rows_ahead(tile, tiles);
        loss += tiles_[thread]->run(work, tile * positives,
                                    std::min(count, (tile + 1) * positives), gradients,
                                    tile > group * per_group, ahead);
      }
      losses_[group] = loss;
    });
    double loss = 0;
    for (int group = 0; group < groups_; ++group) loss += losses_[group];
    return loss;
  }

  void draw_next(const Span& next) {
    if (next.stop <= next.start) return;
    draw(*next_, next);
    drawn_.store(true, std::memory_order_release);
  }

  // Asks for a share of the next batch's rows, a few at a time, while a tile computes: the memory
  // is as slow as the arithmetic, so they had better go on together.
  struct Ahead {
    Engine& engine;
    int at[2], end[2];
    void operator()() {
      for (int which = 0; which < 2; ++which)
        for (int n = 0; n < AT_ONCE && at[which] < end[which]; ++n) {
          Table<S>& rows = engine.table(which);
          const Distinct& of = which ? engine.next_->distinct_items : engine.next_->distinct_users;
          const char* row = reinterpret_cast<const char*>(rows.row(of.ids[at[which]++]));
          for (size_t line = 0; line < rows.row_bytes(); line += 64)
            __builtin_prefetch(row + line, 0, 2);
        }
    }
    static constexpr int AT_ONCE = 2;
  };

  Ahead rows_ahead(int tile, int tiles) {
    Ahead ahead{*this, {0, 0}, {0, 0}};
    if (!drawn_.load(std::memory_order_acquire)) return ahead;
    for (int which = 0; which < 2; ++which) {
      const int64_t count = (which ? next_->distinct_items : next_->distinct_users).count();
      ahead.at[which] = int(count * tile / tiles);
      ahead.end[which] = int(count * (tile + 1) / tiles);
    }
    return ahead;
  }

  void update(const Update<S>& by) {
    const int users_parts = parts(distinct(0).count()), items_parts = parts(distinct(1).count());
    const int pieces = dense.pieces();
    Update<S> dense_by = by;
    Update<S> rows_by = by;
    if (by.rule == Rule::LAZY_ADAM) rows_by.floor = S(settings_.adam.eps);  // SparseAdam's
    pool_.run(pieces + users_parts + items_parts, [&](int part, int) {
      if (part < pieces)
        return dense.step(part, dense_by, gradients_.data(), gradient_stride_, groups_);
      part -= pieces;
      const int which = part >= users_parts;
      const int first = (part - which * users_parts) * ROWS;
      update_rows(which, first, std::min(first + ROWS, distinct(which).count()), rows_by);
    });
    dense.transpose();
  }

  void update_rows(int which, int first, int last, const Update<S>& by) {
    with_width(shape_.width(), [&](auto width) {
      Table<S>& rows = table(which);
      const Distinct& of = distinct(which);
      const S* now = now_[which].data() + size_t(first) * width;
      for (int n = first; n < last; ++n, now += width) {
        if (n + AHEAD < last) prefetch_lines(rows.row(of.ids[n + AHEAD]), rows.row_bytes());
        S* row = rows.row(of.ids[n]);
        const S* gradient = row_gradient(width, row_gradients_[which].data(), of, n);
        S decay1 = 1, decay2 = 1;
        if (by.rule == Rule::ADAM) {
          const int64_t idle = by.step - 1 - rows.stepped(row);
          decay1 = idle_.decay1(idle);
          decay2 = idle_.decay2(idle);
          rows.set_stepped(row, by.step);
        }
        step_row(width, by, row, now, gradient, decay1, decay2);
      }
    });
  }

  // The sum over the places of the nth distinct row, in the order of the batch.
  template <class Width>
  HPCNCF_INLINE const S* row_gradient(Width width, S* gradients, const Distinct& of, int n) {
    S* __restrict sum = gradients + size_t(of.order[of.begin[n]]) * width;
    for (int at = of.begin[n] + 1; at < of.begin[n + 1]; ++at) {
      const S* __restrict more = gradients + size_t(of.order[at]) * width;
      for (int c = 0; c < width; ++c) sum[c] += more[c];
    }
    return sum;
  }

  void settle_row(Table<S>& rows, S* row) {
    int64_t step = rows.stepped(row);
    if (step == 0 || step == steps) return;
    if (step < Idle<S>::ONE_BY_ONE) first_steps(rows, settings_.adam, row, steps);
    step = rows.stepped(row);
    const int width = rows.width();
    catch_up(width, rows, idle_, row, steps, settled(width));
    std::memcpy(row, settled(width), width * sizeof(S));
    const S decay1 = idle_.decay1(steps - step), decay2 = idle_.decay2(steps - step);
    for (int n = 0; n < width; ++n) {
      row[width + n] *= decay1;
      row[2 * width + n] *= decay2;
    }
    rows.set_stepped(row, steps);
  }

  S* settled(int width) {
    thread_local std::vector<S> row;
    row.resize(width);
    return row.data();
  }

  static constexpr int AHEAD = 6;  // rows asked for before they are needed

  Idle<S> idle_;
  Pool pool_;
  Order order_;
  std::unique_ptr<Batch<S>> batch_, next_;
  std::vector<std::unique_ptr<Tile<S>>> tiles_;
  Numbers<S> gradients_, now_[2], row_gradients_[2];
  size_t gradient_stride_ = 0;
  int groups_ = 0;
  std::vector<double> losses_;
  std::atomic<bool> drawn_{false};  // the next batch, in this step
};

}  // namespace hpcncf
