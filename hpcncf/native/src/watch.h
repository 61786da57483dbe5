// Which rows steps read since they were last asked for: those that are not as on other ranks.
#pragma once

#include <algorithm>
#include <vector>

#include "batch.h"

namespace hpcncf {

class Watch {
 public:
  void begin(int64_t rows) { seen_.assign(size_t(rows), false); }
  bool on() const { return !seen_.empty(); }

  // Rows of a table that begins at `offset`.
  void see(const Distinct& of, int64_t offset) {
    for (int n = 0; n < of.count(); ++n) seen_[size_t(offset + of.ids[n])] = true;
  }

  // Writes them, rising, where there is room for all rows; returns how many.
  int64_t moved(int64_t* ids) {
    int64_t count = 0;
    for (size_t row = 0; row < seen_.size(); ++row)
      if (seen_[row]) ids[count++] = int64_t(row);
    std::fill(seen_.begin(), seen_.end(), false);
    return count;
  }

 private:
  std::vector<char> seen_;
};

}  // namespace hpcncf
