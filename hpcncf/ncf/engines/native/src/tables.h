// Rows of a user's own table (hpcncf/remedies), as remedies/row_rules.py moves them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace hpcncf {

// The columns of a record of remedies/row_rules.py: IdleSteps.
enum { LOG_FIRST, LOG_SECOND, LOG_KEPT, CENTRE, SIZE_OF_STEP, EPS_OF_STEP, MOMENTS };

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

// F of remedies/row_rules.py for rows of one table; buffers and powers are made once a call.
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
    T sum = 0;
    for (int64_t j = 0; j < table_.width; ++j) sum += std::abs(first[j]) + second[j];
    return sum == 0;
  }

  // 0: the series converges too slowly for one of the row's values.
  int64_t terms_for(const double* record, const T* first, const T* second) const {
    T least = std::numeric_limits<T>::infinity();
    for (int64_t j = 0; j < table_.width; ++j)
      least = std::min(least, first[j] != 0 ? second[j] : std::numeric_limits<T>::infinity());
    if (!(least < std::numeric_limits<T>::infinity())) return history_.terms[0];
    const double ratio = std::sqrt(static_cast<double>(least)) / record[CENTRE] + 1;
    for (const int64_t terms : history_.terms)
      if (converges(record, terms, history_.left_out, ratio)) return terms;
    return 0;
  }

  void series(const double* record, int64_t terms, const T* second) {
    const T centre = static_cast<T>(record[CENTRE]);
    T scaled[16];
    for (int64_t k = 0; k < terms; ++k)
      scaled[k] = static_cast<T>(all_kept_ * record[MOMENTS + k] / record[CENTRE]);
    for (int64_t j = 0; j < table_.width; ++j) {
      const T near = centre / (std::sqrt(second[j]) + centre);
      T total = scaled[terms - 1];
      for (int64_t k = terms - 2; k >= 0; --k) total = scaled[k] - near * total;
      slope_[j] = total * near;
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

// Bring rows up to date. -1: an id is none of the table's.
template <class T>
int catch_up_rows(const UserTable& table, const IdleHistory& history, const int64_t* ids,
                  int64_t count) {
  constexpr int64_t ahead = 8;
  for (int64_t n = 0; n < count; ++n)
    if (ids[n] < 0 || ids[n] >= table.rows) return -1;
  CatchUp<T> caught(table, history);
  for (int64_t n = 0; n < count; ++n) {
    if (n + ahead < count && table.last[ids[n + ahead]] < history.now)
      prefetch_row<T>(table, ids[n + ahead]);
    if (table.last[ids[n]] < history.now) caught.row(ids[n]);
  }
  return 0;
}

// Adam's step of distinct rows.
template <class T>
void step_rows(const UserTable& table, const AdamStep& step, const int64_t* ids, int64_t count,
               const void* gradients) {
  const T rise = static_cast<T>(1 - step.beta1), beta2 = static_cast<T>(step.beta2);
  const T square = static_cast<T>(1 - step.beta2), kept = static_cast<T>(step.kept);
  const T size = static_cast<T>(step.size), eps = static_cast<T>(step.eps);
  const T correction = static_cast<T>(step.root);
  for (int64_t n = 0; n < count; ++n) {
    if (n + 8 < count) prefetch_row<T>(table, ids[n + 8]);
    const T* gradient = static_cast<const T*>(gradients) + n * table.width;
    T* values = static_cast<T*>(table.values) + ids[n] * table.width;
    T* first = static_cast<T*>(table.first) + ids[n] * table.width;
    T* second = static_cast<T*>(table.second) + ids[n] * table.width;
    for (int64_t j = 0; j < table.width; ++j) {
      const T g = gradient[j];
      first[j] += rise * (g - first[j]);
      second[j] = second[j] * beta2 + square * g * g;
      values[j] = values[j] * kept - size * first[j] / (std::sqrt(second[j]) / correction + eps);
    }
  }
}

}  // namespace hpcncf
