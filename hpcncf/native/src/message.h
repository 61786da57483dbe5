// One rank's gradients as they travel to the others: a head, the dense layers' gradient, ids of
// rows, their gradients; each part at a cache line. They are of one machine: no byte is turned.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "settings.h"

namespace hpcncf {

struct Head {
  uint64_t mark;
  int64_t dense;    // numbers; 0 where the rank had no instance
  int64_t rows[2];  // users, items
  int64_t rest[4];
};
static_assert(sizeof(Head) == 64, "a cache line");

template <class S>
class Message {
 public:
  static constexpr uint64_t MARK = 0x68706e6366000100u + sizeof(S);

  Message(void* at, const Head& head, int width) : at_(static_cast<char*>(at)), head_(head) {
    size_t end = sizeof(Head);
    auto take = [&](int64_t count, size_t each) {
      const size_t from = end;
      end = (end + size_t(count) * each + LINE - 1) / LINE * LINE;
      return from;
    };
    dense_ = take(head.dense, sizeof(S));
    for (int which = 0; which < 2; ++which) ids_[which] = take(head.rows[which], sizeof(int32_t));
    for (int which = 0; which < 2; ++which)
      gradients_[which] = take(head.rows[which], sizeof(S) * size_t(width));
    size_ = end;
  }

  // A message that came: raises std::invalid_argument where it cannot be one.
  static Message received(const void* at, int64_t size, int64_t dense, const int64_t* bounds,
                          int width) {
    auto demand = [](bool holds, const char* what) {
      if (!holds) throw std::invalid_argument(std::string("a rank's message ") + what);
    };
    demand(at && size >= int64_t(sizeof(Head)), "is shorter than its head");
    demand(reinterpret_cast<size_t>(at) % LINE == 0, "does not start at a cache line");
    Head head;
    std::memcpy(&head, at, sizeof head);
    demand(head.mark == MARK, "has another mark: of another version or number format");
    demand(head.dense == 0 || head.dense == dense, "is of layers of other sizes");
    for (int which = 0; which < 2; ++which)
      demand(head.rows[which] >= 0 && head.rows[which] <= bounds[which],
             "has more rows than the table");
    Message message(const_cast<void*>(at), head, width);
    demand(int64_t(message.size_) == size, "has another size than its counts say");
    for (int which = 0; which < 2; ++which) message.check_ids(which, bounds[which]);
    return message;
  }

  void write_head() const { std::memcpy(at_, &head_, sizeof head_); }

  const Head& head() const { return head_; }
  S* dense() const { return reinterpret_cast<S*>(at_ + dense_); }
  int32_t* ids(int which) const { return reinterpret_cast<int32_t*>(at_ + ids_[which]); }
  S* gradients(int which) const { return reinterpret_cast<S*>(at_ + gradients_[which]); }
  size_t size() const { return size_; }

 private:
  static constexpr size_t LINE = 64;

  void check_ids(int which, int64_t bound) const {
    int64_t before = -1;
    for (int64_t n = 0; n < head_.rows[which]; ++n) {
      const int64_t id = ids(which)[n];
      if (id <= before || id >= bound)
        throw std::invalid_argument("a rank's message has row " + std::to_string(id) + " after " +
                                    std::to_string(before) + ": expected rising ones below " +
                                    std::to_string(bound));
      before = id;
    }
  }

  char* at_;
  Head head_;
  size_t dense_, ids_[2], gradients_[2], size_;
};

// Bytes of the longest message of an engine.
template <class S>
int64_t message_capacity(const Settings& settings) {
  const Shape of = shape_of(settings);
  const int64_t most = settings.most_positives;
  const Head head{0, int64_t(of.parameters), {most, most * of.each()}, {}};
  return int64_t(Message<S>(nullptr, head, of.width()).size());
}

}  // namespace hpcncf
