// Counters in memory that several processes share: each rank's own, on a cache line of its own.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

#include "pool.h"

namespace hpcncf {

constexpr int LINE_NUMBERS = 8;  // of a cache line

inline double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// A waiting rank looks all the time at first, for the others are mostly a few microseconds away;
// then it lets others have its core, and at last it sleeps between looks.
class Patience {
 public:
  static constexpr double LOOKING_S = 50e-6, YIELDING_S = 1e-3;

  void once() {
    const double waited = seconds();
    if (waited < LOOKING_S) {
      for (int n = 0; n < 16; ++n) pause_briefly();
    } else if (waited < YIELDING_S) {
      sched_yield();
    } else {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
  double seconds() const { return seconds_now() - began_; }

 private:
  const double began_ = seconds_now();
};

// What this rank wrote before is seen by whoever sees the number.
inline void publish(int64_t* counter, int64_t number) {
  __atomic_store_n(counter, number, __ATOMIC_RELEASE);
}

// The first rank that has not published `number` within so many seconds, or -1.
inline int await(const int64_t* lines, int ranks, int64_t number, double seconds) {
  Patience patience;
  for (int rank = 0; rank < ranks; ++rank)
    while (__atomic_load_n(lines + rank * LINE_NUMBERS, __ATOMIC_ACQUIRE) < number) {
      if (patience.seconds() > seconds) return rank;
      patience.once();
    }
  return -1;
}

}  // namespace hpcncf
