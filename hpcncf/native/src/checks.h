// What must hold of settings and data, said where it does not.
#pragma once

#include <stdexcept>
#include <string>

#include "engine.h"
#include "evaluate.h"

namespace hpcncf {

inline void demand(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

// Where millions are looked at: the text is made only when it is needed.
template <class What>
void demand_each(bool holds, What what) {
  if (!holds) throw std::invalid_argument(what());
}

inline void check(const Settings& of) {
  demand(of.gmf > 0 && of.mlp > 0 && of.context >= 0 && of.negatives >= 0,
         "gmf and mlp must be above 0, context and negatives not below");
  demand(of.depth > 0 && of.depth <= MOST_LAYERS,
         "from 1 to " + std::to_string(MOST_LAYERS) + " layers, not " + std::to_string(of.depth));
  for (int l = 0; l < of.depth; ++l) demand(of.widths[l] > 0, "a layer's width must be above 0");
  demand(of.threads > 0 && of.threads <= 4096, "threads must be from 1 to 4096");
  demand(of.most_positives > 0, "a step must have room for one positive");
}

inline void check_id(int64_t id, int64_t at, int64_t bound, const char* what) {
  demand_each(id >= 0 && id < bound, [&] {
    return std::string(what) + " " + std::to_string(id) + " at " + std::to_string(at) +
           ": expected 0 to " + std::to_string(bound - 1);
  });
}

template <class Id>
void check_ids(const Id* ids, int64_t count, int64_t bound, const char* what) {
  for (int64_t n = 0; n < count; ++n) check_id(ids[n], n, bound, what);
}

inline void check_bounds(const Data& of) {
  const int64_t* bounds = of.buckets.bounds;
  for (int64_t user = 0; user < of.users; ++user)
    demand_each(bounds[user] < bounds[user + 1],
                [&] { return "user " + std::to_string(user) + " has no bucket"; });
  demand(bounds[0] == 0 && bounds[of.users] == of.buckets.count,
         "the buckets' bounds go from " + std::to_string(bounds[0]) + " to " +
             std::to_string(bounds[of.users]) + ": expected 0 to " +
             std::to_string(of.buckets.count));
  demand(of.buckets.count <= int64_t(UINT32_MAX), "2^32 buckets or more");
}

inline void check(const Data& of, const Settings& settings) {
  demand(of.users > 0 && of.items > 0 && of.rows >= 0, "data needs a user and an item");
  demand(of.items <= INT32_MAX, "more than 2^31 - 1 items");
  demand(of.rows_per_block > 0, "a block must have a row");
  demand(of.context == settings.context && of.small >= 0 && of.small <= of.context,
         "data of " + std::to_string(of.context) + " context columns, " + std::to_string(of.small) +
             " of them bytes: expected " + std::to_string(settings.context));
  for (int64_t n = 0; n < of.rows; ++n) {
    const TrainRow row = of.train_row(n);
    check_id(row.user(), n, of.users, "user");
    check_id(row.item(), n, of.items, "item");
  }
  demand(of.indptr[0] == 0, "the positives' offsets do not start at 0");
  for (int64_t user = 0; user < of.users; ++user)  // first: they say how much may be read
    demand_each(of.indptr[user] <= of.indptr[user + 1],
                [&] { return "user " + std::to_string(user) + ": offsets of positives fall"; });
  demand(of.indptr[of.users] == of.pairs,
         "the positives' offsets end at " + std::to_string(of.indptr[of.users]) + ", there are " +
             std::to_string(of.pairs));
  check_bounds(of);
  for (int64_t user = 0; user < of.users; ++user) {
    const int64_t first = of.indptr[user], end = of.indptr[user + 1];
    check_ids(of.positives + first, end - first, of.items, "positive");
    for (int64_t n = first + 1; n < end; ++n)
      demand_each(of.positives[n - 1] < of.positives[n], [&] {
        return "user " + std::to_string(user) + ": positives are not sorted";
      });
    const int64_t bucket = of.buckets.bounds[user];
    const auto count = uint32_t(of.buckets.bounds[user + 1] - bucket);
    for (int64_t n = first; n < end; ++n) {
      const auto at = [&](int32_t item) {
        return of.buckets.slots + (bucket + Buckets::of(item, count)) * Buckets::SLOTS;
      };
      demand_each(Buckets::any(of.positives + n, 1, at), [&] {
        return "user " + std::to_string(user) + ": buckets are not the positives'";
      });
    }
    demand_each(settings.negatives == 0 || end - first < of.items, [&] {
      return "user " + std::to_string(user) + " has all " + std::to_string(of.items) +
             " items: no negative can be drawn";
    });
  }
}

inline void check(const Span& of, const Data& data, const Settings& settings) {
  if (of.stop <= of.start) return;
  demand(of.start >= 0 && of.stop <= data.rows && of.epoch >= 0,
         "positions " + std::to_string(of.start) + " to " + std::to_string(of.stop) +
             ": expected within 0 to " + std::to_string(data.rows));
  demand(of.stop - of.start <= settings.most_positives,
         std::to_string(of.stop - of.start) + " positives in a step: made for at most " +
             std::to_string(settings.most_positives));
}

inline void check(const Test& of, const Data& data) {
  check_ids(of.users, of.rows, data.users, "user");
  check_ids(of.items, of.rows, data.items, "item");
  if (of.negatives) check_ids(of.negatives, of.rows * of.each, data.items, "negative");
}

}  // namespace hpcncf
