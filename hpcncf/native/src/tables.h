// Rows of a user's own table, as hpcncf/remedies/row_rules.py and row_catch_up.py move them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace hpcncf {

// The columns of a record of remedies/row_catch_up.py: IdleSteps.
enum { LOG_FIRST, LOG_SECOND, LOG_KEPT, CENTRE, SIZE_OF_STEP, EPS_OF_STEP, MOMENTS };

constexpr int64_t ROWS_AHEAD = 8;  // of the one that is worked on, asked for from memory

struct IdleHistory {
  const double* records;
  int64_t columns, now, window;
  int64_t terms[2];
  double log_first, log_second, left_out, min_shrinkage;
};

struct UserTable {
  void *values, *first, *second;
  int64_t* last;
  int64_t rows, width;
};

struct AdamStep {
  double beta1, beta2, kept, size, root, eps;
};

template <class T>
void prefetch_row(const UserTable& table, int64_t id) {
  if (id < 0 || id >= table.rows) return;
  for (const void* each : {table.values, table.first, table.second}) {
    const char* row = reinterpret_cast<const char*>(static_cast<const T*>(each) + id * table.width);
    for (size_t at = 0; at < table.width * sizeof(T); at += 64) __builtin_prefetch(row + at, 1);
  }
}

// Whether so many terms of the series suffice for values with (sqrt(v) + c) / c of `ratio` or more.
inline bool converges(const double* record, int64_t terms, double left_out, double ratio) {
  double power = 1;
  for (int64_t k = 0; k < terms; ++k) power *= ratio;
  return record[MOMENTS + terms] <= record[MOMENTS] * left_out * power;
}

// F of remedies/row_catch_up.py for rows of one table; buffers and powers are made once a call.
template <class T>
class CatchUp {
 public:
  CatchUp(const UserTable& table, const IdleHistory& history)
      : table_(table), history_(history), now_(history.records + history.now * history.columns),
        all_kept_(std::exp(now_[LOG_KEPT])), slope_(table.width) {}

  void row(int64_t id) {
    const double* record = history_.records + table_.last[id] * history_.columns;
    T* values = static_cast<T*>(table_.values) + id * table_.width;
    T* first = static_cast<T*>(table_.first) + id * table_.width;
    T* second = static_cast<T*>(table_.second) + id * table_.width;
    if (now_[LOG_KEPT] == record[LOG_KEPT] && never_moved(first, second)) {
      table_.last[id] = history_.now;
      return;
    }
    if (const int64_t terms = terms_for(record, first, second))
      series(record, terms, second);
    else
      sum(record, table_.last[id], second);
    const double idle = static_cast<double>(history_.now - table_.last[id]);
    const T keeps_first = shrinkage(idle * history_.log_first + now_[LOG_FIRST] - record[LOG_FIRST]);
    const T keeps_second =
        shrinkage(idle * history_.log_second + now_[LOG_SECOND] - record[LOG_SECOND]);
    const T kept = static_cast<T>(std::exp(now_[LOG_KEPT] - record[LOG_KEPT]));
    for (int64_t j = 0; j < table_.width; ++j) {
      values[j] = values[j] * kept - first[j] * slope_[j];
      first[j] *= keeps_first;
      second[j] *= keeps_second;
    }
    table_.last[id] = history_.now;
  }

 private:
  T shrinkage(double logarithm) const {
    const double found = std::exp(logarithm);
    return static_cast<T>(found < history_.min_shrinkage ? 0.0 : found);
  }

  bool never_moved(const T* first, const T* second) const {
    for (int64_t j = 0; j < table_.width; ++j)
      if (first[j] != 0 || second[j] != 0) return false;
    return true;
  }

  // 0: the series converges too slowly for one of the row's values.
  int64_t terms_for(const double* record, const T* first, const T* second) const {
    constexpr T none = std::numeric_limits<T>::infinity();
    constexpr int lanes = 16;  // or the loop would not become one over vectors
    T least[lanes];
    std::fill(least, least + lanes, none);
    const auto lower = [&](T& bound, int64_t j) {
      const T each = first[j] != 0 ? second[j] : none;
      bound = each < bound ? each : bound;
    };
    int64_t j = 0;
    for (; j + lanes <= table_.width; j += lanes)
      for (int lane = 0; lane < lanes; ++lane) lower(least[lane], j + lane);
    for (; j < table_.width; ++j) lower(least[0], j);
    const T lowest = *std::min_element(least, least + lanes);
    if (lowest == none) return history_.terms[0];
    const double ratio = std::sqrt(static_cast<double>(lowest)) / record[CENTRE] + 1;
    for (const int64_t terms : history_.terms)
      if (converges(record, terms, history_.left_out, ratio)) return terms;
    return 0;
  }

  void series(const double* record, int64_t terms, const T* second) {
    switch (terms) {  // a number known to the compiler: it then takes many values at once
      case 4: return series_of<4>(record, second);
      case 8: return series_of<8>(record, second);
      default: return series_of<12>(record, second);
    }
  }

  template <int TERMS>
  void series_of(const double* record, const T* __restrict second) {
    const T centre = static_cast<T>(record[CENTRE]);
    T scaled[TERMS];
    for (int k = 0; k < TERMS; ++k)
      scaled[k] = static_cast<T>(all_kept_ * record[MOMENTS + k] / record[CENTRE]);
    T* __restrict slope = slope_.data();
    for (int64_t j = 0; j < table_.width; ++j) {
      const T near = centre / (std::sqrt(second[j]) + centre);
      T total = scaled[TERMS - 1];
      for (int k = TERMS - 2; k >= 0; --k) total = scaled[k] - near * total;
      slope[j] = total * near;
    }
  }

  // Term by term.
  void sum(const double* start, int64_t last, const T* second) {
    root_.resize(table_.width);
    for (int64_t j = 0; j < table_.width; ++j) {
      root_[j] = std::sqrt(second[j]);
      slope_[j] = 0;
    }
    const int64_t most = std::min(history_.window, history_.now - last);
    for (int64_t k = static_cast<int64_t>(weight_.size()); k <= most; ++k) {
      weight_.push_back(std::exp(k * (history_.log_first - 0.5 * history_.log_second)));
      grown_.push_back(std::exp(-0.5 * k * history_.log_second));
    }
    const auto exp_of = [](double change) { return change == 0 ? 1.0 : std::exp(change); };
    for (int64_t k = 1; k <= most; ++k) {
      const double* there = start + k * history_.columns;
      const double root = 0.5 * (start[LOG_SECOND] - there[LOG_SECOND]);
      const double change = there[LOG_FIRST] - start[LOG_FIRST] + root;
      const double weight_change = exp_of(change + now_[LOG_KEPT] - there[LOG_KEPT]);
      const double grown = exp_of(root) * grown_[k];
      const T weight = static_cast<T>(there[SIZE_OF_STEP] * weight_[k] * weight_change);
      const T place = static_cast<T>(there[EPS_OF_STEP] * grown);
      for (int64_t j = 0; j < table_.width; ++j) slope_[j] += weight / (root_[j] + place);
    }
  }

  const UserTable& table_;
  const IdleHistory& history_;
  const double* now_;
  double all_kept_;
  std::vector<T> slope_, root_;
  std::vector<double> weight_, grown_;  // (beta1 / sqrt(beta2))^k, beta2^(-k/2): constant rates
};

inline bool all_in(const UserTable& table, const int64_t* ids, int64_t count) {
  for (int64_t n = 0; n < count; ++n)
    if (ids[n] < 0 || ids[n] >= table.rows) return false;
  return true;
}

// Bring rows up to date. -1: an id is none of the table's.
template <class T>
int catch_up_rows(const UserTable& table, const IdleHistory& history, const int64_t* ids,
                  int64_t count) {
  if (!all_in(table, ids, count)) return -1;
  CatchUp<T> caught(table, history);
  for (int64_t n = 0; n < count; ++n) {
    if (n + ROWS_AHEAD < count && table.last[ids[n + ROWS_AHEAD]] < history.now)
      prefetch_row<T>(table, ids[n + ROWS_AHEAD]);
    if (table.last[ids[n]] < history.now) caught.row(ids[n]);
  }
  return 0;
}

// The places of ids by rising id, equal ones in their order.
inline std::vector<int64_t> ordered(const int64_t* ids, int64_t count, int64_t rows) {
  constexpr int bits = 11;
  std::vector<int64_t> order(count), sorted;
  std::iota(order.begin(), order.end(), 0);
  if (std::is_sorted(ids, ids + count)) return order;
  sorted.resize(count);
  for (int shift = 0; shift < 63 && (rows - 1) >> shift; shift += bits) {
    const auto digit = [&](int64_t at) { return ids[at] >> shift & ((1 << bits) - 1); };
    int64_t starts[(1 << bits) + 1] = {};
    for (const int64_t at : order) ++starts[digit(at) + 1];
    std::partial_sum(starts, starts + (1 << bits), starts);
    for (const int64_t at : order) sorted[starts[digit(at)]++] = at;
    order.swap(sorted);
  }
  return order;
}

// Adam's step of the rows `ids`, whose gradients [count, width] are added where ids are equal: the
// rows are then current as of the step behind `history`. How many there are; -1: an id is none of
// the table's.
template <class T>
int64_t step_rows(const UserTable& table, const IdleHistory& history, const AdamStep& step,
                  const int64_t* ids, int64_t count, const void* gradients) {
  if (!all_in(table, ids, count)) return -1;
  const T rise = static_cast<T>(1 - step.beta1), beta2 = static_cast<T>(step.beta2);
  const T square = static_cast<T>(1 - step.beta2), kept = static_cast<T>(step.kept);
  const T size = static_cast<T>(step.size), eps = static_cast<T>(step.eps);
  const T correction = static_cast<T>(step.root);
  CatchUp<T> caught(table, history);
  std::vector<T> total(table.width);
  const std::vector<int64_t> order = ordered(ids, count, table.rows);
  int64_t found = 0;
  for (int64_t n = 0; n < count; ++found) {
    const int64_t id = ids[order[n]];
    const T* gradient = static_cast<const T*>(gradients) + order[n] * table.width;
    if (n + ROWS_AHEAD < count) {
      prefetch_row<T>(table, ids[order[n + ROWS_AHEAD]]);
      const T* later = static_cast<const T*>(gradients) + order[n + ROWS_AHEAD] * table.width;
      for (int64_t j = 0; j < table.width; j += 64 / sizeof(T)) __builtin_prefetch(later + j);
    }
    if (++n < count && ids[order[n]] == id) {
      std::copy(gradient, gradient + table.width, total.begin());
      for (; n < count && ids[order[n]] == id; ++n) {
        const T* more = static_cast<const T*>(gradients) + order[n] * table.width;
        for (int64_t j = 0; j < table.width; ++j) total[j] += more[j];
      }
      gradient = total.data();
    }
    if (table.last[id] < history.now) caught.row(id);  // another rank read it
    T* values = static_cast<T*>(table.values) + id * table.width;
    T* first = static_cast<T*>(table.first) + id * table.width;
    T* second = static_cast<T*>(table.second) + id * table.width;
    for (int64_t j = 0; j < table.width; ++j) {
      const T g = gradient[j];
      first[j] += rise * (g - first[j]);
      second[j] = second[j] * beta2 + square * g * g;
      values[j] = values[j] * kept - size * first[j] / (std::sqrt(second[j]) / correction + eps);
    }
    table.last[id] = history.now + 1;
  }
  return found;
}

}  // namespace hpcncf
