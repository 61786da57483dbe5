// Throws good and bad input at the native engine's C functions; built with sanitizers by
// `make sanitize`, which find what the inner loops would do with what the checks let through.

#include "api.cpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

// Data of which every part can be spoilt.
struct Made {
  int64_t users, items, rows;
  int context;
  std::vector<int32_t> train_users, train_items, positives;
  std::vector<float> train_context;
  std::vector<int64_t> indptr;

  Made(int64_t users, int64_t items, int64_t per_user, int context)
      : users(users), items(items), rows(users * per_user), context(context) {
    indptr.push_back(0);
    for (int64_t user = 0; user < users; ++user) {
      for (int64_t n = 0; n < per_user; ++n) {
        train_users.push_back(int32_t(user));
        train_items.push_back(int32_t(n * items / per_user));
        positives.push_back(train_items.back());
      }
      indptr.push_back(int64_t(positives.size()));
    }
    train_context.assign(size_t(rows * context), 0.5f);
  }

  Data data() const {
    return {users, items, rows, int64_t(positives.size()), train_users.data(), train_items.data(), train_context.data(),
            indptr.data(), positives.data()};
  }
};

Settings settings(int context) {
  return {8, 32, context, 4, 3, 2, {32, 16, 8}, Rule::ADAM, {0.001, 0.9, 0.999, 1e-8}, 7, 64};
}

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("not as expected: %s: %s\n", what, hpcncf_problem());
  ++failures;
}

void* made_engine(const Made& made, const Settings& with, int doubles) {
  const Data data = made.data();
  return hpcncf_new(&with, &data, doubles);
}

// Steps over the data, evaluates, settles; returns the last loss.
double trained(void* engine, const Made& made, int64_t batch) {
  double loss = 0;
  for (int64_t step = 0; step < 25; ++step) {
    const int64_t start = step * batch % made.rows, stop = std::min(start + batch, made.rows);
    const Span span{step / 5, start, stop}, next{step / 5, 0, std::min(batch, made.rows)};
    expect(hpcncf_step(engine, &span, 1.0 / double(batch * 5), &next, &loss) == 0, "step");
  }
  expect(hpcncf_settle(engine) == 0, "settle");
  const int32_t user = 0, item = int32_t(made.items - 1), negatives[] = {0, 0, 0};
  std::vector<float> context(size_t(made.context), 1.0f);
  int32_t rank = -1;
  for (const int32_t* given : {static_cast<const int32_t*>(nullptr), negatives}) {
    const Test test{1, &user, &item, context.data(), given, given ? 3 : 0};
    expect(hpcncf_evaluate(engine, &test, &rank) == 0, "evaluate");
  }
  return loss;
}

void good(const Made& made, Settings with) {
  for (int doubles : {0, 1})
    for (Rule rule : {Rule::ADAM, Rule::LAZY_ADAM, Rule::SGD})
      for (int64_t batch : {1, 7, 64}) {
        with.rule = rule;
        void* engine = made_engine(made, with, doubles);
        expect(engine, "an engine of good data");
        if (engine) expect(std::isfinite(trained(engine, made, batch)), "a finite loss");
        hpcncf_free(engine);
      }
}

template <class Spoil>
void bad(const char* what, Spoil spoil) {
  Made made(5, 9, 3, 2);
  Settings with = settings(2);
  spoil(made, with);
  void* engine = made_engine(made, with, 0);
  expect(!engine, what);
  hpcncf_free(engine);
}

void bad_data() {
  bad("user too high", [](Made& made, Settings&) { made.train_users[3] = 5; });
  bad("user below 0", [](Made& made, Settings&) { made.train_users[14] = -1; });
  bad("item too high", [](Made& made, Settings&) { made.train_items[0] = 9; });
  bad("positive below 0", [](Made& made, Settings&) { made.positives[4] = -7; });
  bad("positives unsorted", [](Made& made, Settings&) { made.positives[1] = 0; });
  bad("offsets that fall", [](Made& made, Settings&) { made.indptr[2] = 1; });
  bad("offsets not from 0", [](Made& made, Settings&) { made.indptr[0] = 1; });
  bad("offsets that end late", [](Made& made, Settings&) { made.indptr[5] = 99; });
  bad("no users", [](Made& made, Settings&) { made.users = 0; });
  bad("no layers", [](Made&, Settings& with) { with.depth = 0; });
  bad("too many layers", [](Made&, Settings& with) { with.depth = 17; });
  bad("a layer of width 0", [](Made&, Settings& with) { with.widths[1] = 0; });
  bad("no threads", [](Made&, Settings& with) { with.threads = 0; });
  bad("no room", [](Made&, Settings& with) { with.most_positives = 0; });
  bad("negatives below 0", [](Made&, Settings& with) { with.negatives = -1; });
}

void bad_calls() {
  const Made made(5, 9, 3, 2);
  void* engine = made_engine(made, settings(2), 0);
  double loss = 0;
  const Span none{0, 0, 0};
  for (const Span& span : {Span{0, -1, 3}, Span{0, 0, 16}, Span{-1, 0, 3},
                           Span{0, INT64_MIN, INT64_MAX}}) {
    expect(hpcncf_step(engine, &span, 1, &none, &loss) != 0, "a span out of range");
    expect(hpcncf_step(engine, &none, 1, &span, &loss) != 0, "a next span out of range");
  }
  expect(hpcncf_step(engine, &none, 1, &none, &loss) == 0 && loss == 0, "an empty batch");
  const float context[2] = {0, 0};
  for (int32_t id : {-1, 9, INT32_MAX}) {
    int32_t zero = 0, rank;
    for (const Test& test : {Test{1, &id, &zero, context, nullptr, 0},
                             Test{1, &zero, &id, context, nullptr, 0},
                             Test{1, &zero, &zero, context, &id, 1}})
      expect(hpcncf_evaluate(engine, &test, &rank) != 0, "an id out of range");
  }
  hpcncf_free(engine);
}

void no_number_in_the_context() {
  for (float value : {NAN, INFINITY, -INFINITY}) {
    Made made(5, 9, 3, 2);
    made.train_context.assign(made.train_context.size(), value);
    void* engine = made_engine(made, settings(2), 0);
    trained(engine, made, 7);
    hpcncf_free(engine);
  }
}

// Shapes at random: sizes that are no multiples of anything.
void random_shapes() {
  std::mt19937 random(1);
  auto upto = [&](int most) { return 1 + int(random() % unsigned(most)); };
  for (int n = 0; n < 5; ++n) {
    const int context = upto(40) - 1;
    Settings with = settings(context);
    with.gmf = upto(20), with.mlp = upto(70), with.negatives = upto(12) - 1;
    with.depth = upto(5), with.threads = upto(4);
    for (int l = 0; l < with.depth; ++l) with.widths[l] = upto(90);
    const int64_t items = 1 + upto(300);
    good(Made(upto(40), items, std::min<int64_t>(upto(20), items - 1), context), with);
  }
}

}  // namespace

int main() {
  good(Made(1, 2, 1, 3), settings(3));     // one user
  good(Made(40, 11, 10, 0), settings(0));  // all items but one, no context
  Settings none = settings(1);
  none.negatives = 0;
  good(Made(3, 1, 1, 1), none);  // one item
  bad("one item and no negative left", [](Made& made, Settings&) { made = Made(1, 1, 1, 2); });
  bad_data();
  bad_calls();
  no_number_in_the_context();
  random_shapes();
  std::printf("%d failures\n", failures);
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
