// What Python calls. Everything is checked here, once, so that no inner loop has to.

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "engine.h"
#include "evaluate.h"

#define HPCNCF_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace hpcncf;

// The two engines behind one face: float to train, double to be compared with.
struct Face {
  virtual ~Face() = default;
  virtual double step(const Span& span, double scale, const Span& next) = 0;
  virtual double gradients(const Span& span, double scale, const Span& next, void* slot,
                           int64_t capacity, int64_t* size) = 0;
  virtual void apply(const void* const* messages, const int64_t* sizes, int ranks) = 0;
  virtual void watch() = 0;
  virtual int64_t moved(int64_t* ids) = 0;
  virtual int64_t rows_count() const = 0;
  virtual int64_t row_numbers() const = 0;
  virtual void exchange_rows(const int64_t* ids, int64_t count, void* to, const void* from) = 0;
  virtual void settle() = 0;
  virtual void evaluate(const Test& test, int32_t* ranks) = 0;
  virtual void draw(const Span& span, int64_t* rows, int32_t* users, int32_t* items) = 0;
  virtual void* rows(int which, int64_t* stride) = 0;
  virtual void* dense(int which, int64_t* count) = 0;
  virtual void dense_changed() = 0;
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
  void watch() override { engine.watch.begin(engine.rows.count()); }
  int64_t moved(int64_t* ids) override { return engine.watch.moved(ids); }
  int64_t rows_count() const override { return engine.rows.count(); }
  int64_t row_numbers() const override { return engine.rows.numbers(); }
  void exchange_rows(const int64_t* ids, int64_t count, void* to, const void* from) override {
    engine.exchange_rows(ids, count, static_cast<S*>(to), static_cast<const S*>(from));
  }
  void settle() override { engine.settle(); }
  void evaluate(const Test& test, int32_t* ranks) override {
    Evaluation<S>(engine).run(test, ranks);
  }
  void draw(const Span& span, int64_t* rows, int32_t* users, int32_t* items) override {
    Batch<S>& batch = engine.batch();
    engine.draw(batch, span);
    const size_t count = size_t(batch.positives()), each = size_t(engine.shape().each());
    std::copy_n(batch.rows.begin(), count, rows);
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
  void dense_changed() override { engine.dense.transpose(); }
  int64_t& steps() override { return engine.steps; }
  const Settings& settings() const override { return engine.settings(); }
  const Data& data() const override { return engine.data(); }
};

thread_local std::string problem;

// Nothing may be thrown through C: 0, or -1 with the reason in `problem`.
template <class Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  return -1;
}

}  // namespace

HPCNCF_EXPORT int hpcncf_interface() { return 3; }

HPCNCF_EXPORT const char* hpcncf_problem() { return problem.c_str(); }

HPCNCF_EXPORT void* hpcncf_new(const Settings* settings, const Data* data, int doubles) {
  Face* made = nullptr;
  guarded([&] {
    check(*settings);
    check(*data, *settings);
    if (doubles)
      made = new Of<double>(*settings, *data);
    else
      made = new Of<float>(*settings, *data);
  });
  return made;
}

HPCNCF_EXPORT void hpcncf_free(void* engine) { delete static_cast<Face*>(engine); }

HPCNCF_EXPORT int hpcncf_step(void* engine, const Span* span, double scale, const Span* next,
                              double* loss) {
  return guarded([&] {
    auto& face = *static_cast<Face*>(engine);
    check(*span, face.data(), face.settings());
    check(*next, face.data(), face.settings());
    *loss = face.step(*span, scale, *next);
  });
}

// What `hpcncf_gradients` of such an engine writes at most, in bytes; -1: no such engine.
HPCNCF_EXPORT int64_t hpcncf_capacity(const Settings* settings, int doubles) {
  int64_t bytes = -1;
  guarded([&] {
    check(*settings);
    bytes = doubles ? message_capacity<double>(*settings) : message_capacity<float>(*settings);
  });
  return bytes;
}

// Half a step of several ranks: a message of `*size` bytes with this one's gradients to `slot`,
// which has room for `capacity`.
HPCNCF_EXPORT int hpcncf_gradients(void* engine, const Span* span, double scale, const Span* next,
                                   void* slot, int64_t capacity, int64_t* size, double* loss) {
  return guarded([&] {
    auto& face = *static_cast<Face*>(engine);
    check(*span, face.data(), face.settings());
    check(*next, face.data(), face.settings());
    *loss = face.gradients(*span, scale, *next, slot, capacity, size);
  });
}

// The other half: the messages of all ranks, in the ranks' order.
HPCNCF_EXPORT int hpcncf_apply(void* engine, const void* const* messages, const int64_t* sizes,
                               int ranks) {
  return guarded([&] { static_cast<Face*>(engine)->apply(messages, sizes, ranks); });
}

// From now on the engine notes which rows its steps read.
HPCNCF_EXPORT int hpcncf_watch(void* engine) {
  return guarded([&] { static_cast<Face*>(engine)->watch(); });
}

// Ids of those since the last call, items behind the users, to an array with room for all.
HPCNCF_EXPORT int64_t hpcncf_moved(void* engine, int64_t* ids) {
  return static_cast<Face*>(engine)->moved(ids);
}

// How many numbers of a row steps change.
HPCNCF_EXPORT int64_t hpcncf_row_numbers(void* engine) {
  return static_cast<Face*>(engine)->row_numbers();
}

// All of those, of these rows, as of now; `hpcncf_put_rows` goes on from such.
HPCNCF_EXPORT int hpcncf_take_rows(void* engine, const int64_t* ids, int64_t count, void* to) {
  return guarded([&] {
    auto& face = *static_cast<Face*>(engine);
    check_ids(ids, count, face.rows_count(), "row");
    face.exchange_rows(ids, count, to, nullptr);
  });
}

HPCNCF_EXPORT int hpcncf_put_rows(void* engine, const int64_t* ids, int64_t count,
                                  const void* from) {
  return guarded([&] {
    auto& face = *static_cast<Face*>(engine);
    check_ids(ids, count, face.rows_count(), "row");
    face.exchange_rows(ids, count, nullptr, from);
  });
}

HPCNCF_EXPORT int hpcncf_settle(void* engine) {
  return guarded([&] { static_cast<Face*>(engine)->settle(); });
}

HPCNCF_EXPORT int hpcncf_evaluate(void* engine, const Test* test, int32_t* ranks) {
  return guarded([&] {
    auto& face = *static_cast<Face*>(engine);
    check(*test, face.data());
    face.evaluate(*test, ranks);
  });
}

HPCNCF_EXPORT int hpcncf_draw(void* engine, const Span* span, int64_t* rows, int32_t* users,
                              int32_t* items) {
  return guarded([&] {
    auto& face = *static_cast<Face*>(engine);
    check(*span, face.data(), face.settings());
    face.draw(*span, rows, users, items);
  });
}

// The memory of users (0) or items (1), rows `stride` numbers apart.
HPCNCF_EXPORT void* hpcncf_rows(void* engine, int which, int64_t* stride) {
  return static_cast<Face*>(engine)->rows(which, stride);
}

// The memory of the dense parameters (0), first (1) or second (2) moments.
HPCNCF_EXPORT void* hpcncf_dense(void* engine, int which, int64_t* count) {
  return static_cast<Face*>(engine)->dense(which, count);
}

HPCNCF_EXPORT void hpcncf_dense_changed(void* engine) {
  static_cast<Face*>(engine)->dense_changed();
}

HPCNCF_EXPORT int64_t hpcncf_steps(void* engine) { return static_cast<Face*>(engine)->steps(); }

HPCNCF_EXPORT void hpcncf_set_steps(void* engine, int64_t steps) {
  static_cast<Face*>(engine)->steps() = steps;
}
