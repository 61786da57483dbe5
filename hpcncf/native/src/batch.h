// A step's instances, and which rows they share: all that does not depend on the parameters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absent.h"
#include "memory.h"
#include "sampling.h"
#include "settings.h"

namespace hpcncf {

// A training row of the prepared data: user, item, context. Of the context some columns are numbers,
// those behind them bytes.
struct TrainRow {
  const char* at;

  int32_t user() const { return number<int32_t>(0); }
  int32_t item() const { return number<int32_t>(1); }

  template <class S>
  void context(int columns, int small, S* to) const {
    const int numbers = columns - small;
    for (int n = 0; n < numbers; ++n) to[n] = S(number<float>(2 + n));
    const auto* bytes = reinterpret_cast<const uint8_t*>(at) + (2 + numbers) * sizeof(float);
    for (int n = 0; n < small; ++n) to[numbers + n] = S(bytes[n]);
  }

  static constexpr size_t bytes(int columns, int small) {
    return (2 + size_t(columns - small)) * sizeof(float) + size_t(small);
  }

 private:
  template <class T>
  T number(int n) const {
    T found;
    std::memcpy(&found, at + n * sizeof found, sizeof found);
    return found;
  }
};

// The prepared data, read-only and owned by Python.
struct Data {
  int64_t users, items, rows, pairs;  // pairs: of `positives`
  int64_t rows_per_block;             // of an epoch's order
  int64_t context, small;             // columns; how many of them, the last, are bytes in a row
  const char* train_rows;
  const int64_t* indptr;
  const int32_t* positives;
  Buckets buckets;

  TrainRow train_row(int64_t row) const { return {train_rows + size_t(row) * row_bytes()}; }
  size_t row_bytes() const { return TrainRow::bytes(int(context), int(small)); }
};

// Which rows of a table a batch has, each once and in their order, and where each occurs.
class Distinct {
 public:
  std::vector<int32_t> ids;         // sorted
  std::vector<int32_t> begin;       // ids[n] is at places order[begin[n]] to order[begin[n + 1]]
  std::vector<int32_t> order;
  std::vector<int32_t> slot;        // [place]: n with ids[n] the row at that place

  // `most` places of ids below `bound`.
  void reserve(size_t most, int64_t bound) {
    ids.resize(most);
    begin.resize(most + 1);
    order.resize(most);
    slot.resize(most);
    keys_.resize(most);
    other_.resize(most);
    int bits = 1;
    while ((bound - 1) >> bits) ++bits;
    passes_ = (bits + 9) / 10;
    digit_ = (bits + passes_ - 1) / passes_;
    counts_.resize(size_t(1) << digit_);
  }

  void find(const int32_t* at_place, int places) {
    for (int place = 0; place < places; ++place)
      keys_[place] = uint64_t(at_place[place]) << 32 | uint32_t(place);
    for (int pass = 0; pass < passes_; ++pass) sort_by_digit(32 + pass * digit_, places);
    count_ = 0;
    int32_t before = -1;
    for (int n = 0; n < places; ++n) {
      int32_t id = int32_t(keys_[n] >> 32);
      order[n] = int32_t(uint32_t(keys_[n]));
      if (id != before) {
        ids[count_] = before = id;
        begin[count_++] = n;
      }
      slot[order[n]] = count_ - 1;
    }
    begin[count_] = places;
  }

  int count() const { return count_; }

 private:
  // One pass of a radix sort; it is stable, so that a row's places stay in their order.
  void sort_by_digit(int shift, int places) {
    const uint64_t mask = (uint64_t(1) << digit_) - 1;
    std::fill(counts_.begin(), counts_.end(), 0);
    for (int n = 0; n < places; ++n) ++counts_[keys_[n] >> shift & mask];
    int32_t total = 0;
    for (auto& count : counts_) {
      int32_t mine = count;
      count = total;
      total += mine;
    }
    for (int n = 0; n < places; ++n) other_[counts_[keys_[n] >> shift & mask]++] = keys_[n];
    keys_.swap(other_);
  }

  std::vector<uint64_t> keys_, other_;
  std::vector<int32_t> counts_;
  int passes_ = 1, digit_ = 1, count_ = 0;
};

// The rows at a span of an epoch's order.
struct SpanRows {
  Span span{-1, 0, 0};
  std::vector<int64_t> rows;

  // Finds them and asks for their memory: rows that follow one another are one piece of it.
  void ask(const Order& order, const Span& of, const Data& data) {
    span = of;
    const int count = int(of.count());
    order.at(of.start, count, rows.data());
    for (int n = 0, first = 0; n < count; ++n) {
      if (n + 1 < count && rows[n + 1] == rows[n] + 1) continue;
      prefetch_lines<For::READING_LATER>(data.train_row(rows[first]).at,
                                         size_t(n + 1 - first) * data.row_bytes());
      first = n + 1;
    }
  }
};

// The instances at a span of an epoch's order: its rows with their negatives.
template <class S>
class Batch {
 public:
  SpanRows from;
  std::vector<int32_t> users, items;  // [positive], [positive][1 + negatives]
  Numbers<S> inputs;                  // [positive][shared]: the user's part is filled in later
  Distinct distinct_users, distinct_items;

  Batch(const Shape& shape, const Data& data, const Absent& absent, int64_t most)
      : shape_(shape), data_(data), absent_(absent) {
    from.rows.resize(most);
    users.resize(most);
    items.resize(most * shape.each());
    inputs.resize((most + BLOCK) * shape.shared());
    distinct_users.reserve(most, data.users);
    distinct_items.reserve(most * shape.each(), data.items);
  }

  int positives() const { return int(from.span.count()); }

  // To be drawn next: the rows at a span.
  void ask(const Order& order, const Span& span) { from.ask(order, span, data_); }

  // Draws the instances of the rows that were asked for. Loops ask for what later ones read: their
  // waits for memory overlap.
  void draw(uint64_t seed) {
    const int count = positives(), each = shape_.each(), negatives = shape_.negatives;
    for (int p = 0; p < count; ++p) draw_words(seed, p);
    for (int p = 0; p < count; ++p) {
      users[p] = row(p).user();
      items[size_t(p) * each] = row(p).item();
      absent_.ask(users[p]);
    }
    for (int p = 0; p < count; ++p) absent_.draw(users[p], drawn(p), negatives);
    for (int p = 0; p < count; ++p)
      row(p).context(shape_.context, int(data_.small),
                     inputs.data() + size_t(p) * shape_.shared() + shape_.mlp);
    for (int p = 0; p < count; ++p) absent_.replace_positives(users[p], drawn(p), negatives);
    distinct_users.find(users.data(), count);
    distinct_items.find(items.data(), count * each);
  }

 private:
  TrainRow row(int p) const { return data_.train_row(from.rows[p]); }
  int32_t* drawn(int p) { return items.data() + size_t(p) * shape_.each() + 1; }

  void draw_words(uint64_t seed, int p) {
    for (int k = 0; k < shape_.negatives; k += 4) {
      const Words words =
          philox(seed, NEGATIVES, uint32_t(from.span.epoch), uint64_t(from.rows[p]), k / 4);
      std::copy_n(words.word, std::min(4, shape_.negatives - k), drawn(p) + k);
    }
  }

  const Shape& shape_;
  const Data& data_;
  const Absent& absent_;
};

}  // namespace hpcncf
