// The rows of both tables: read as of a step, stepped, settled. Nothing here knows threads.
#pragma once

#include <algorithm>
#include <vector>

#include "settings.h"

namespace hpcncf {

template <class S>
class Rows {
 public:
  Table<S> users, items;

  Rows(const Settings& settings, int64_t users, int64_t items, int width)
      : users(users, width, settings.rule),
        items(items, width, settings.rule),
        rule_(settings.rule),
        adam_(settings.adam),
        idle_(settings.adam) {}

  Table<S>& table(int which) { return which == 0 ? users : items; }
  int width() const { return users.width(); }

  // To be called before rows are read as of `step`.
  void until(int64_t step) {
    if (rule_ == Rule::ADAM) idle_.until(step);
  }

  // Of one step, to all rows.
  Update<S> update_of(int64_t step) const {
    const S rate = S(rule_ == Rule::SGD ? adam_.lr : adam_.rate(step));
    return {rule_,           rate,           S(adam_.floor(step)), S(adam_.b1), S(adam_.b2),
            S(1 - adam_.b1), S(1 - adam_.b2), step};
  }

  // The nth row of `ids` as of `step`, into `now`; asks for those that come next.
  template <class Width>
  HPCNCF_INLINE void read(Width width, Table<S>& table, const int32_t* ids, int n, int count,
                          int64_t step, S* now) {
    if (n + AHEAD < count) prefetch_lines(table.row(ids[n + AHEAD]), table.row_bytes());
    S* row = table.row(ids[n]);
    if (rule_ != Rule::ADAM) {
      std::memcpy(now, row, width * sizeof(S));
      return;
    }
    if (table.stepped(row) < Idle<S>::ONE_BY_ONE) first_steps(table, adam_, row, step);
    catch_up(width, table, idle_, row, step, now);
  }

  // Steps a row whose parameters as of the step before are `now`.
  template <class Width>
  HPCNCF_INLINE void step(Width width, Table<S>& table, const Update<S>& by, S* row, const S* now,
                          const S* gradient) {
    S decay1 = 1, decay2 = 1;
    if (by.rule == Rule::ADAM) {
      const int64_t idle = by.step - 1 - table.stepped(row);
      decay1 = idle_.decay1(idle);
      decay2 = idle_.decay2(idle);
      table.set_stepped(row, by.step);
    }
    step_row(width, by, row, now, gradient, decay1, decay2);
  }

  // Brings a row to `step`, after `until`.
  void settle(Table<S>& table, S* row, int64_t step) const {
    int64_t from = table.stepped(row);
    if (rule_ != Rule::ADAM || from == 0 || from == step) return;
    if (from < Idle<S>::ONE_BY_ONE) first_steps(table, adam_, row, step);
    from = table.stepped(row);
    const int width = table.width();
    thread_local std::vector<S> now;
    now.resize(width);
    catch_up(width, table, idle_, row, step, now.data());
    std::copy(now.begin(), now.end(), row);
    const S decay1 = idle_.decay1(step - from), decay2 = idle_.decay2(step - from);
    for (int n = 0; n < width; ++n) {
      row[width + n] *= decay1;
      row[2 * width + n] *= decay2;
    }
    table.set_stepped(row, step);
  }

  static constexpr int AHEAD = 6;  // rows asked for before they are needed

 private:
  const Rule rule_;
  const Adam adam_;
  Idle<S> idle_;
};

}  // namespace hpcncf
