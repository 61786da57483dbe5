// What Python calls. Everything is checked here, once, so that no inner loop has to.

#include <chrono>
#include <exception>
#include <string>

#include "face.h"
#include "tables.h"

#define HPCNCF_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace hpcncf;

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

HPCNCF_EXPORT int hpcncf_interface() { return 8; }

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

// `count` steps, on `spans` one after another; the instances of the one behind them are drawn
// meanwhile. Their losses are added to `loss`; `ends` are seconds from the call to each step's end.
HPCNCF_EXPORT int hpcncf_step(void* engine, const Span* spans, int count, double scale,
                              double* loss, double* ends) {
  return guarded([&] {
    const auto began = std::chrono::steady_clock::now();
    auto& face = *static_cast<Face*>(engine);
    for (int n = 0; n <= count; ++n) check(spans[n], face.data(), face.settings());
    for (int n = 0; n < count; ++n) {
      *loss += face.step(spans[n], scale, spans[n + 1]);
      ends[n] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }
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

HPCNCF_EXPORT int64_t hpcncf_steps(void* engine) { return static_cast<Face*>(engine)->steps(); }

HPCNCF_EXPORT void hpcncf_set_steps(void* engine, int64_t steps) {
  static_cast<Face*>(engine)->steps() = steps;
}

// Of remedies/row_kernels.py, which has checked types and contiguity.
HPCNCF_EXPORT int hpcncf_catch_up_rows(const UserTable* table, const IdleHistory* history,
                                       const int64_t* ids, int64_t count, int doubles) {
  return doubles ? catch_up_rows<double>(*table, *history, ids, count)
                 : catch_up_rows<float>(*table, *history, ids, count);
}

HPCNCF_EXPORT int64_t hpcncf_step_gradient(const UserTable* table, const IdleHistory* history,
                                       const AdamStep* step, const int64_t* ids, int64_t count,
                                       const void* gradients, int doubles) {
  return doubles ? step_rows<double>(*table, *history, *step, ids, count, gradients)
                 : step_rows<float>(*table, *history, *step, ids, count, gradients);
}
