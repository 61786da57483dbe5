// One pool of threads: each takes its own share of a task's parts one by one, then what others have
// not yet taken, so that a slow core holds up nobody.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcncf {

// A waiting thread looks this often before it sleeps. Longer than the gap between two tasks of a
// step, far shorter than a scheduler's time slice: a neighbour on our core gets it, and a thread of
// ours that lost its core can move to that of one that sleeps.
constexpr int LOOKS = 4000;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The core that runs this thread, or -1 where a system does not say.
inline int core_here() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// A thread's share is the same of each task with as many parts: what it read in one is in its
// core's cache in the next. A task ends when its parts are done, not when all threads have come: a
// thread that lost its core between two parts is not waited for. Nobody looks out for a thread that
// shares its core, for that one cannot come while the core is looking.
class Pool {
 public:
  explicit Pool(int threads)
      : threads_(threads),
        cores_(new std::atomic<int>[size_t(threads)]),
        shares_(new Share[size_t(threads)]) {
    for (int number = 0; number < threads; ++number) cores_[number] = NOWHERE;
    for (int number = 1; number < threads; ++number)
      workers_.emplace_back([this, number] { serve(number); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    called_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls work(part, thread) for each part below `parts`, and returns when all are done.
  template <class Work>
  void run(int parts, Work work) {
    if (workers_.empty() || parts == 1) {
      for (int part = 0; part < parts; ++part) work(part, 0);
      return;
    }
    work_ = &work;
    call_ = [](void* body, int part, int thread) { (*static_cast<Work*>(body))(part, thread); };
    left_.store(parts, std::memory_order_relaxed);
    cores_[0].store(core_here(), std::memory_order_relaxed);
    for (int64_t thread = 0; thread < threads(); ++thread)
      shares_[thread].ticket.store(uint64_t(parts * (thread + 1) / threads()) << END_SHIFT |
                                   uint64_t(parts * thread / threads()));
    ++task_;
    wake(called_, sleepers_);
    take_all(0);
    wait(finished_, waiting_, shared(), [&] { return left_.load() == 0; });
  }

 private:
  // A share's ticket: where it ends, and the next part. In one word, so that a thread that comes
  // late takes a part of the present task or none.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };
  static constexpr int END_SHIFT = 32;

  void take_all(int thread) {
    for (int n = 0; n < threads(); ++n)
      while (take(shares_[(thread + n) % threads()].ticket, thread)) {
      }
  }

  bool take(std::atomic<uint64_t>& ticket, int thread) {
    uint64_t seen = ticket.load();
    if (uint32_t(seen) >= seen >> END_SHIFT) return false;
    uint64_t mine = ticket.fetch_add(1);
    if (uint32_t(mine) >= mine >> END_SHIFT) return false;
    if (thread > 0) cores_[thread].store(core_here(), std::memory_order_relaxed);
    call_(work_, int(uint32_t(mine)), thread);
    if (thread > 0) cores_[thread].store(NOWHERE, std::memory_order_relaxed);
    if (left_.fetch_sub(1) == 1) wake(finished_, waiting_);
    return true;
  }

  void serve(int thread) {
    while (!ending_) {
      const uint64_t before = task_.load();
      take_all(thread);
      const int mine = core_here();
      wait(called_, sleepers_, mine >= 0 && mine == cores_[0].load(std::memory_order_relaxed),
           [&] { return task_.load() != before || ending_.load(); });
    }
  }

  // Whether a thread that is within a part was on the caller's core when it began.
  bool shared() const {
    const int mine = core_here();
    for (int thread = 1; mine >= 0 && thread < threads(); ++thread)
      if (cores_[thread].load(std::memory_order_relaxed) == mine) return true;
    return false;
  }

  template <class Ready>
  void wait(std::condition_variable& condition, std::atomic<int>& asleep, bool at_once,
            Ready ready) {
    for (int look = 0; look < (at_once ? 0 : LOOKS); ++look) {
      if (ready()) return;
      pause_briefly();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++asleep;
    condition.wait(lock, ready);
    --asleep;
  }

  // All is sequentially consistent: either we see the sleeper, or it sees what we did before.
  void wake(std::condition_variable& condition, std::atomic<int>& asleep) {
    if (asleep.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }
    condition.notify_all();
  }

  static constexpr int NOWHERE = -2;

  const int threads_;
  std::unique_ptr<std::atomic<int>[]> cores_;  // the caller's, and of workers within a part
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable called_, finished_;
  std::unique_ptr<Share[]> shares_;  // of each thread
  alignas(64) std::atomic<uint64_t> task_{0};
  alignas(64) std::atomic<int> left_{0};  // parts of the present task that are not done
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> waiting_{0};
  std::atomic<bool> ending_{false};
  void* work_ = nullptr;
  void (*call_)(void*, int, int) = nullptr;
};

}  // namespace hpcncf
