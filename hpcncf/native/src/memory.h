// Memory for tables that are read at random.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

#include "vectors.h"

namespace hpcncf {

// Zeroed numbers at a multiple of 2 MiB, in huge pages where the kernel gives them: with small ones
// nearly every row of a large table costs a walk of the page table.
template <class S>
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t count) : count_(count) {
    length_ = (count * sizeof(S) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE;
    mapped_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    auto address = reinterpret_cast<size_t>(mapped_);
    data_ = reinterpret_cast<S*>((address + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#ifdef MADV_HUGEPAGE
    madvise(data_, length_ - HUGE_PAGE, MADV_HUGEPAGE);
#endif
  }
  ~Pages() {
    if (data_) munmap(mapped_, length_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  S* data() { return data_; }
  const S* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  static constexpr size_t HUGE_PAGE = size_t(1) << 21;
  void* mapped_ = nullptr;
  size_t length_ = 0, count_ = 0;
  S* data_ = nullptr;
};

// Numbers that start at a cache line; what they hold at first is zero.
template <class S>
class Numbers {
 public:
  explicit Numbers(size_t count = 0) { resize(count); }
  ~Numbers() { std::free(data_); }
  Numbers(Numbers&& other) noexcept : data_(other.data_), count_(other.count_) {
    other.data_ = nullptr;
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  void resize(size_t count) {
    std::free(data_);
    size_t bytes = (count * sizeof(S) + LINE - 1) / LINE * LINE + LINE;
    data_ = static_cast<S*>(std::aligned_alloc(LINE, bytes));
    if (!data_) throw std::bad_alloc();
    __builtin_memset(data_, 0, bytes);
    count_ = count;
  }
  S* data() { return data_; }
  const S* data() const { return data_; }
  size_t size() const { return count_; }
  S& operator[](size_t at) { return data_[at]; }
  const S& operator[](size_t at) const { return data_[at]; }

 private:
  static constexpr size_t LINE = 64;
  S* data_ = nullptr;
  size_t count_ = 0;
};

// What is asked for to be written is taken from the other cores' caches at once; what is read later
// goes into the second cache: it would not stay in the first.
enum class For { READING, READING_LATER, WRITING };

// Always inline, like all that only prefetches: gcc holds such a function for one without effect
// and leaves out its calls.
template <For PURPOSE = For::READING>
HPCNCF_INLINE void prefetch_lines(const void* from, size_t bytes) {
  const auto first = reinterpret_cast<size_t>(from);
  for (size_t at = first / 64 * 64; at < first + bytes; at += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(at), PURPOSE == For::WRITING,
                       PURPOSE == For::READING_LATER ? 2 : 3);
}

}  // namespace hpcncf
