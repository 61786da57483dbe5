// The two engines behind one face: float to train, double to be compared with.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "checks.h"
#include "engine.h"
#include "evaluate.h"

namespace hpcncf {

struct Face {
  virtual ~Face() = default;
  virtual double step(const Span& span, double scale, const Span& next) = 0;
  virtual double gradients(const Span& span, double scale, const Span& next, void* slot,
                           int64_t capacity, int64_t* size) = 0;
  virtual void apply(const void* const* messages, const int64_t* sizes, int ranks) = 0;
  virtual void settle() = 0;
  virtual void evaluate(const Test& test, int32_t* ranks) = 0;
  virtual void draw(const Span& span, int64_t* rows, int32_t* users, int32_t* items) = 0;
  virtual void* rows(int which, int64_t* stride) = 0;
  virtual void* dense(int which, int64_t* count) = 0;
  virtual int64_t& steps() = 0;
  virtual const Settings& settings() const = 0;
  virtual const Data& data() const = 0;
};

template <class S>
struct Of final : Face {
  Engine<S> engine;
  Of(const Settings& settings, const Data& data) : engine(settings, data) {}

  double step(const Span& span, double scale, const Span& next) override {
    return engine.step(span, S(scale), next);
  }
  double gradients(const Span& span, double scale, const Span& next, void* slot, int64_t capacity,
                   int64_t* size) override {
    const int64_t most = message_capacity<S>(engine.settings());
    demand(capacity >= most, "a slot of " + std::to_string(capacity) +
                                 " bytes: a message may need " + std::to_string(most));
    demand(reinterpret_cast<size_t>(slot) % 64 == 0, "a slot must start at a cache line");
    return engine.gradients(span, S(scale), next, slot, size);
  }
  void apply(const void* const* messages, const int64_t* sizes, int ranks) override {
    const int64_t bounds[2] = {engine.rows.users.rows(), engine.rows.items.rows()};
    const Shape& shape = engine.shape();
    std::vector<Message<S>> received;
    for (int rank = 0; rank < ranks; ++rank)
      received.push_back(Message<S>::received(messages[rank], sizes[rank],
                                              int64_t(shape.parameters), bounds, shape.width()));
    engine.apply(received);
  }
  void settle() override { engine.settle(); }
  void evaluate(const Test& test, int32_t* ranks) override {
    Evaluation<S>(engine).run(test, ranks);
  }
  void draw(const Span& span, int64_t* rows, int32_t* users, int32_t* items) override {
    Batch<S>& batch = engine.batch();
    engine.draw(batch, span);
    const size_t count = size_t(batch.positives()), each = size_t(engine.shape().each());
    std::copy_n(batch.from.rows.begin(), count, rows);
    std::copy_n(batch.users.begin(), count, users);
    std::copy_n(batch.items.begin(), count * each, items);
  }
  void* rows(int which, int64_t* stride) override {
    *stride = engine.rows.table(which).stride();
    return engine.rows.table(which).row(0);
  }
  void* dense(int which, int64_t* count) override {
    auto& dense = engine.dense;
    Numbers<S>* parts[] = {&dense.parameters, &dense.first, &dense.second};
    *count = int64_t(engine.shape().parameters);
    return parts[which]->data();
  }
  int64_t& steps() override { return engine.steps; }
  const Settings& settings() const override { return engine.settings(); }
  const Data& data() const override { return engine.data(); }
};

}  // namespace hpcncf
