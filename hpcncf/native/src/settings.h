// What the engine receives: once, and for each step. Python lays these out alike (library.py).
#pragma once

#include <cstdint>

#include "shape.h"
#include "table.h"

namespace hpcncf {

struct Settings {
  int gmf, mlp, context, negatives, depth, threads;
  int widths[MOST_LAYERS];
  Rule rule;
  Adam adam;
  uint64_t seed;
  int64_t most_positives;  // of a step
};

inline Shape shape_of(const Settings& of) {
  return Shape(of.gmf, of.mlp, of.context, of.negatives, of.widths, of.depth);
}

// A span of positions of an epoch's order; stop <= start: none.
struct Span {
  int64_t epoch, start, stop;

  int64_t count() const { return stop > start ? stop - start : 0; }
  bool operator==(const Span& other) const {
    return epoch == other.epoch && start == other.start && stop == other.stop;
  }
};

}  // namespace hpcncf
