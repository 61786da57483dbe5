// One optimiser step: the rows' present values, the batch's pass, the update; of one rank alone in
// one call, of several in two, between which their gradients travel.
#pragma once

#include <algorithm>

#include "pass.h"
#include "union.h"

namespace hpcncf {

template <class S>
class Engine {
 public:
  Engine(const Settings& settings, const Data& data)
      : settings_(settings),
        data_(data),
        shape_(shape_of(settings)),
        absent_(data.indptr, data.positives, data.buckets, data.users, data.items),
        rows(settings, data.users, data.items, shape_.width()),
        dense(shape_),
        pool_(settings.threads),
        order_(settings.seed, 0, data.rows, data.rows_per_block),
        pass_(shape_, dense, pool_, size_t(settings.most_positives)) {
    batch_ = std::make_unique<Batch<S>>(shape_, data_, absent_, settings.most_positives);
    next_ = std::make_unique<Batch<S>>(shape_, data_, absent_, settings.most_positives);
    for (int n = 0; n < pool_.threads(); ++n) scratch_.emplace_back(2 * size_t(shape_.width()));
  }

  // Steps on the instances at `span`; their loss counts `scale` times. Returns the sum of the
  // losses, unscaled. The instances of `next` are drawn meanwhile.
  double step(const Span& span, S scale, const Span& next) {
    const double loss = passed(span, scale, next);
    ++steps;
    update();
    batch_.swap(next_);
    return loss;
  }

  // The first half of a step of several ranks: this one's gradients, as a message to all.
  double gradients(const Span& span, S scale, const Span& next, void* slot, int64_t* size) {
    const double loss = passed(span, scale, next);
    const bool any = batch_->positives() > 0;
    const Head head{Message<S>::MARK,
                    any ? int64_t(shape_.parameters) : 0,
                    {distinct(0).count(), distinct(1).count()},
                    {}};
    const Message<S> message(slot, head, shape_.width());
    message.write_head();
    pack(message);
    batch_.swap(next_);
    *size = int64_t(message.size());
    return loss;
  }

  // The second half: steps by the messages of all ranks, which are summed in the ranks' order.
  void apply(const std::vector<Message<S>>& messages) {
    std::vector<const S*> parts;
    for (const Message<S>& message : messages)
      if (message.head().dense) parts.push_back(message.dense());
    for (int which = 0; which < 2; ++which)
      unions_[which].find(messages, which, rows.table(which).rows(), shape_.width());
    rows.until(steps);
    ++steps;
    const Update<S> dense_by = rows.update_of(steps), rows_by = rows_update(dense_by);
    const int pieces = dense.pieces();
    run_rows(
        pieces, [&](int piece) { dense.step(piece, dense_by, parts.data(), int(parts.size())); },
        unions_[0].rows.count(), unions_[1].rows.count(),
        [&](int which, int first, int last, int thread) {
          apply_rows(which, first, last, rows_by, scratch_[thread].data());
        });
  }

  // Brings every row to the last step.
  void settle() {
    rows.until(steps);
    for (int which = 0; which < 2; ++which) {
      Table<S>& table = rows.table(which);
      const int64_t parts = (table.rows() + SETTLED - 1) / SETTLED;
      pool_.run(int(parts), [&](int part, int) {
        const int64_t first = int64_t(part) * SETTLED;
        const int64_t last = std::min<int64_t>(first + SETTLED, table.rows());
        for (int64_t id = first; id < last; ++id) rows.settle(table, table.row(id), steps);
      });
    }
  }

  void draw(Batch<S>& batch, const Span& span) {
    ask(batch, span);
    batch.draw(settings_.seed);
  }

  Batch<S>& batch() { return *batch_; }
  const Shape& shape() const { return shape_; }
  const Settings& settings() const { return settings_; }
  const Data& data() const { return data_; }
  Pool& pool() { return pool_; }

 private:
  static constexpr int ROWS = 64;  // of a part
  static constexpr int64_t SETTLED = 4096;

  const Settings settings_;
  const Data data_;
  const Shape shape_;
  const Absent absent_;

 public:
  Rows<S> rows;
  Dense<S> dense;
  int64_t steps = 0;

 private:
  Distinct& distinct(int which) {
    return which == 0 ? batch_->distinct_users : batch_->distinct_items;
  }

  // SparseAdam adds eps without bias correction.
  Update<S> rows_update(Update<S> by) const {
    if (by.rule == Rule::LAZY_ADAM) by.floor = S(settings_.adam.eps);
    return by;
  }

  // Shares among the threads `pieces` and ROWS rows at a time of both tables.
  template <class Piece, class Body>
  void run_rows(int pieces, Piece piece, int users, int items, Body body) {
    const int counts[2] = {users, items}, of_users = (users + ROWS - 1) / ROWS;
    pool_.run(pieces + of_users + (items + ROWS - 1) / ROWS, [&](int part, int thread) {
      if (part < pieces) return piece(part);
      part -= pieces;
      const int which = part >= of_users, first = (part - which * of_users) * ROWS;
      body(which, first, std::min(first + ROWS, counts[which]), thread);
    });
  }

  void ask(Batch<S>& batch, const Span& span) {
    if (order_.epoch != span.epoch)
      order_ = Order(settings_.seed, span.epoch, data_.rows, data_.rows_per_block);
    batch.ask(order_, span);
  }

  // All but the update. The training rows of `next` come from memory while this step's parameters
  // are read: asked for beside the first matrix, for with a part of its own the threads would share
  // the parameters' rows otherwise than in the update.
  double passed(const Span& span, S scale, const Span& next) {
    if (!(batch_->from.span == span)) draw(*batch_, span);
    rows.until(steps);
    run_rows(
        dense.matrices(),
        [&](int matrix) {
          if (matrix == 0 && next.count()) ask(*next_, next);
          dense.turn(matrix);
        },
        distinct(0).count(), distinct(1).count(),
        [this](int which, int first, int last, int) { read_rows(which, first, last); });
    return pass_.run(*batch_, scale, [&] {
      if (next.count()) next_->draw(settings_.seed);
    });
  }

  void read_rows(int which, int first, int last) {
    const Distinct& of = distinct(which);
    with_width(shape_.width(), [&](auto width) {
      for (int n = first; n < last; ++n)
        rows.read(width, rows.table(which), of.ids.data(), n, of.count(), steps,
                  pass_.now(which, n));
    });
  }

  void update() {
    std::vector<const S*> parts(pass_.groups());
    for (int group = 0; group < pass_.groups(); ++group) parts[group] = pass_.group_gradient(group);
    const Update<S> dense_by = rows.update_of(steps), rows_by = rows_update(dense_by);
    run_rows(
        dense.pieces(),
        [&](int piece) { dense.step(piece, dense_by, parts.data(), int(parts.size())); },
        distinct(0).count(), distinct(1).count(),
        [&](int which, int first, int last, int) { update_rows(which, first, last, rows_by); });
  }

  void update_rows(int which, int first, int last, const Update<S>& by) {
    with_width(shape_.width(), [&](auto width) {
      Table<S>& table = rows.table(which);
      const Distinct& of = distinct(which);
      for (int n = first; n < last; ++n) {
        if (n + rows.AHEAD < last)
          prefetch_lines<For::WRITING>(table.row(of.ids[n + rows.AHEAD]), table.row_bytes());
        const S* gradient = pass_.row_gradient(width, which, of, n);
        rows.step(width, table, by, table.row(of.ids[n]), pass_.now(which, n), gradient);
      }
    });
  }

  void pack(const Message<S>& message) {
    std::vector<const S*> parts(pass_.groups());
    for (int group = 0; group < pass_.groups(); ++group) parts[group] = pass_.group_gradient(group);
    for (int which = 0; which < 2; ++which)
      std::copy_n(distinct(which).ids.begin(), distinct(which).count(), message.ids(which));
    run_rows(
        message.head().dense ? dense.pieces() : 0,
        [&](int piece) { dense.sum(piece, parts.data(), int(parts.size()), message.dense()); },
        distinct(0).count(), distinct(1).count(), [&](int which, int first, int last, int) {
          with_width(shape_.width(), [&](auto width) {
            S* to = message.gradients(which) + size_t(first) * width;
            for (int n = first; n < last; ++n, to += width)
              std::copy_n(pass_.row_gradient(width, which, distinct(which), n), int(width), to);
          });
        });
  }

  void apply_rows(int which, int first, int last, const Update<S>& by, S* scratch) {
    with_width(shape_.width(), [&](auto width) {
      Table<S>& table = rows.table(which);
      const Union<S>& of = unions_[which];
      S *now = scratch, *sum = scratch + width;
      for (int n = first; n < last; ++n) {
        rows.read(width, table, of.rows.ids.data(), n, last, by.step - 1, now);
        S* row = table.row(of.rows.ids[n]);
        rows.step(width, table, by, row, now, of.gradient(width, n, sum));
      }
    });
  }

  Pool pool_;
  Order order_;
  Pass<S> pass_;
  std::unique_ptr<Batch<S>> batch_, next_;  // the second is drawn while the first is computed
  Union<S> unions_[2];
  std::vector<Numbers<S>> scratch_;  // of each thread: a row and a gradient
};

}  // namespace hpcncf
