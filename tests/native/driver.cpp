// Throws good and bad input at the native engine's C functions; built with sanitizers by
// `make sanitize`, which find what the inner loops would do with what the checks let through.

#include "api.cpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace {

// Users' lists of positives.
struct Lists {
  std::vector<int64_t> indptr{0}, bounds{0};
  std::vector<int32_t> positives;
  std::vector<uint16_t> slots;

  void add(std::vector<int32_t> list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    positives.insert(positives.end(), list.begin(), list.end());
    indptr.push_back(int64_t(positives.size()));
    uint32_t count = 1;
    while (!put(list, count)) ++count;
    bounds.push_back(bounds.back() + count);
  }

  Buckets buckets() const {
    return {int64_t(slots.size()) / Buckets::SLOTS, bounds.data(), slots.data()};
  }

  std::vector<int32_t> absent_of(int64_t user, int64_t items) const {
    std::vector<int32_t> found;
    int64_t next = indptr[user];
    for (int32_t item = 0; item < items; ++item)
      if (next < indptr[user + 1] && positives[next] == item)
        ++next;
      else
        found.push_back(item);
    return found;
  }

 private:
  // Into so many buckets behind those of other users, if they are enough.
  bool put(const std::vector<int32_t>& list, uint32_t count) {
    const size_t first = size_t(bounds.back());
    slots.assign(slots.begin(), slots.begin() + ptrdiff_t(first * Buckets::SLOTS));
    slots.resize((first + count) * Buckets::SLOTS);
    std::vector<int> filled(count, 0);
    for (const int32_t item : list) {
      const uint32_t bucket = Buckets::of(item, count);
      if (filled[bucket] == Buckets::SLOTS) return false;
      slots[(first + bucket) * Buckets::SLOTS + size_t(filled[bucket]++)] = uint16_t(item);
    }
    return true;
  }
};

// Data of which every part can be spoilt.
struct Made {
  int64_t users, items, rows, rows_per_block = 3;
  int context, small;
  Lists lists;
  std::vector<char> train_rows;

  Made(int64_t users, int64_t items, int64_t per_user, int context)
      : users(users), items(items), rows(users * per_user), context(context), small(context / 2) {
    std::vector<int32_t> list;
    for (int64_t n = 0; n < per_user; ++n) list.push_back(int32_t(n * items / per_user));
    for (int64_t user = 0; user < users; ++user) lists.add(list);
    train_rows.resize(size_t(rows) * TrainRow::bytes(context, small));
    for (int64_t row = 0; row < rows; ++row) {
      set(row, 0, int32_t(row / per_user));
      set(row, 1, lists.positives[row]);
    }
    set_context(0.5f);
  }

  // Of a training row: user, item, context.
  template <class Number>
  void set(int64_t row, int place, Number value) {
    char* to = train_rows.data() + size_t(row) * TrainRow::bytes(context, small);
    std::memcpy(to + size_t(place) * sizeof value, &value, sizeof value);
  }

  void set_context(float value) {
    for (int64_t row = 0; row < rows; ++row)
      for (int n = 0; n < context - small; ++n) set(row, 2 + n, value);
  }

  Data data() const {
    return {users, items, rows, int64_t(lists.positives.size()), rows_per_block, context, small,
            train_rows.data(), lists.indptr.data(), lists.positives.data(), lists.buckets()};
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

// Steps over the data, evaluates, settles; returns the sum of the losses.
double trained(void* engine, const Made& made, int64_t batch) {
  double loss = 0, ends[2];
  for (int64_t step = 0; step < 25; ++step) {
    const int64_t start = step * batch % made.rows, stop = std::min(start + batch, made.rows);
    const Span first{step / 5, 0, std::min(batch, made.rows)};
    const Span spans[] = {{step / 5, start, stop}, first, first};
    const int count = 1 + int(step % 2);
    expect(hpcncf_step(engine, spans, count, 1.0 / double(batch * 5), &loss, ends) == 0, "step");
    expect(ends[0] > 0 && ends[count - 1] >= ends[0], "the ends of steps");
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
  bad("user too high", [](Made& made, Settings&) { made.set(3, 0, 5); });
  bad("user below 0", [](Made& made, Settings&) { made.set(14, 0, -1); });
  bad("item too high", [](Made& made, Settings&) { made.set(0, 1, 9); });
  bad("positive below 0", [](Made& made, Settings&) { made.lists.positives[4] = -7; });
  bad("a slot of another", [](Made& made, Settings&) { made.lists.slots[1] += 7; });
  bad("a user without bucket", [](Made& made, Settings&) { made.lists.bounds[2] = 1; });
  bad("buckets not from 0", [](Made& made, Settings&) { made.lists.bounds[0] = -1; });
  bad("buckets that end late", [](Made& made, Settings&) { made.lists.bounds[5] = 99; });
  bad("bytes below 0", [](Made& made, Settings&) { made.small = -1; });
  bad("too many items", [](Made& made, Settings&) { made.items = int64_t(1) << 31; });
  bad("more bytes than context", [](Made& made, Settings&) { made.small = 3; });
  bad("context of another width", [](Made& made, Settings&) { made.context = 3; });
  bad("positives unsorted", [](Made& made, Settings&) { made.lists.positives[1] = 0; });
  bad("offsets that fall", [](Made& made, Settings&) { made.lists.indptr[2] = 1; });
  bad("offsets not from 0", [](Made& made, Settings&) { made.lists.indptr[0] = 1; });
  bad("offsets that end late", [](Made& made, Settings&) { made.lists.indptr[5] = 99; });
  bad("empty blocks", [](Made& made, Settings&) { made.rows_per_block = 0; });
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
  double loss = 0, ends[1];
  const Span none{0, 0, 0};
  for (const Span& span : {Span{0, -1, 3}, Span{0, 0, 16}, Span{-1, 0, 3},
                           Span{0, INT64_MIN, INT64_MAX}}) {
    const Span spans[] = {span, none, span};
    expect(hpcncf_step(engine, spans, 1, 1, &loss, ends) != 0, "a span out of range");
    expect(hpcncf_step(engine, spans + 1, 1, 1, &loss, ends) != 0, "a next span out of range");
  }
  const Span early[] = {{0, INT64_MIN, INT64_MIN}, {0, 0, 3}};
  expect(hpcncf_step(engine, early, 1, 1, &loss, ends) == 0, "an empty span far before the next");
  const Span nones[] = {none, none};
  expect(hpcncf_step(engine, nones, 1, 1, &loss, ends) == 0 && loss == 0, "an empty batch");
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

// A message's memory: it begins at a cache line, and ends where the sanitizer looks.
class Letter {
 public:
  explicit Letter(int64_t size) : size(size), bytes_(std::aligned_alloc(64, size_t(size))) {
    std::memset(bytes_, 0, size_t(size));
  }
  Letter(const Letter& from, int64_t length) : Letter((length + 63) / 64 * 64) {
    std::memcpy(bytes_, from.bytes_, size_t(std::min(length, from.size)));
  }
  ~Letter() { std::free(bytes_); }
  Letter(const Letter&) = delete;
  Letter& operator=(const Letter&) = delete;

  template <class T>
  T& at(int64_t byte) {
    return *reinterpret_cast<T*>(static_cast<char*>(bytes_) + byte);
  }
  void* bytes() { return bytes_; }
  int64_t size;

 private:
  void* bytes_;
};

int applied(void* engine, Letter& one, Letter& other, int64_t other_size) {
  const void* messages[] = {one.bytes(), other.bytes()};
  const int64_t sizes[] = {one.size, other_size};
  return hpcncf_apply(engine, messages, sizes, 2);
}

// Two halves of a step in turns with a message that somebody spoilt: it is refused, or harmless.
void messages(int doubles) {
  const Made made(5, 9, 3, 2);
  Settings with = settings(2);
  with.threads = 1;
  void* engine = made_engine(made, with, doubles);
  const int64_t capacity = hpcncf_capacity(&with, doubles);
  Letter room(capacity);
  const Span some{0, 0, 9}, none{0, 0, 0}, spans[] = {some, none};
  int64_t size = 0;
  double loss = 0, ends[1];
  auto gradients = [&](const Span& span, int64_t given) {
    return hpcncf_gradients(engine, &span, 0.02, &none, room.bytes(), given, &size, &loss);
  };
  expect(gradients(some, capacity - 1) != 0, "a slot too small");
  expect(gradients(Span{0, 9, 16}, capacity) != 0, "a span out of range");
  expect(gradients(none, capacity) == 0 && size == 64, "an empty shard is a head");
  const Letter empty(room, size);
  expect(gradients(some, capacity) == 0 && size <= capacity, "gradients");
  Letter good(room, size);
  for (int64_t shorter : {int64_t(0), int64_t(63), int64_t(64), size - 64, size - 1})
    expect(applied(engine, good, good, shorter) != 0, "a message cut short");
  for (int64_t word = 0; word < 4; ++word)
    for (int64_t value : {int64_t(-1), int64_t(1), INT64_MAX, INT64_MIN, int64_t(1) << 32}) {
      Letter bad(good, size);
      bad.at<int64_t>(8 * word) = value;
      expect(applied(engine, good, bad, bad.size) != 0, "a head of other counts");
    }
  const int64_t dense = good.at<int64_t>(8), each = doubles ? 8 : 4;
  const int64_t ids = 64 + (dense * each + 63) / 64 * 64;
  for (int32_t id : {-1, 5, INT32_MIN, INT32_MAX}) {
    Letter bad(good, size);
    bad.at<int32_t>(ids) = id;
    expect(applied(engine, good, bad, bad.size) != 0, "an id that is none");
  }
  std::mt19937 random(3);
  for (int n = 0; n < 300; ++n) {
    Letter bad(good, size);
    for (int flips = 0; flips < 3; ++flips)
      bad.at<uint8_t>(int64_t(random() % uint64_t(n % 2 ? size : ids + 64))) = uint8_t(random());
    applied(engine, good, bad, bad.size);  // what is only another gradient is taken
  }
  Letter nan(good, size), nobody(empty, 64);
  for (int64_t byte = 64; byte < ids; byte += each)
    doubles ? nan.at<double>(byte) = NAN : nan.at<float>(byte) = NAN;
  expect(applied(engine, nan, nobody, 64) == 0, "a gradient that is no number");
  expect(hpcncf_step(engine, spans, 1, 0.02, &loss, ends) == 0 && std::isnan(loss), "and shows");
  hpcncf_free(engine);
}

void no_number_in_the_context() {
  for (float value : {NAN, INFINITY, -INFINITY}) {
    Made made(5, 9, 3, 2);
    made.set_context(value);
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

// Every item that a user does not have is found by its number, and no other.
void every_negative() {
  std::mt19937 random(7);
  for (int64_t items : {3'000, 65'536, 65'537, 300'000}) {
    Lists lists;
    const int32_t last = int32_t(items) - 1;
    for (int held : {0, 1, 31, 33, 60, 63, 64, 65, 127, 129, 200, 256, 257, 600}) {
      std::vector<int32_t> together, anywhere, at_the_end;
      for (int n = 0; n < held; ++n) {
        together.push_back(501 + n);
        at_the_end.push_back(last - n);
        anywhere.push_back(int32_t(random() % items));
      }
      lists.add(together);
      lists.add(anywhere);
      lists.add(at_the_end);
    }
    const int64_t users = int64_t(lists.indptr.size()) - 1;
    const Absent absent(lists.indptr.data(), lists.positives.data(), lists.buckets(), users,
                        items);
    for (int64_t user = 0; user < users; ++user) {
      const std::vector<int32_t> expected = lists.absent_of(user, items);
      const uint64_t others = expected.size();
      std::vector<int32_t> drawn;
      for (uint64_t nth = 0; nth < others; ++nth)
        drawn.push_back(int32_t(uint32_t(((nth << 32) + others - 1) / others)));
      for (size_t at = 0; at < others; at += 4) {
        const int some = int(std::min<size_t>(4, others - at));
        absent.draw(user, drawn.data() + at, some);
        absent.replace_positives(user, drawn.data() + at, some);
      }
      std::sort(drawn.begin(), drawn.end());
      expect(drawn == expected, "each of the items that a user does not have, once");
    }
  }
}

// Each part of a task is taken once, whatever the threads and however long the parts are.
void tasks() {
  std::mt19937 random(5);
  for (int threads : {1, 2, 4}) {
    Pool pool(threads);
    for (int task = 0; task < 2000; ++task) {
      const int parts = int(random() % 40);
      std::vector<int> taken(size_t(parts), 0);
      pool.run(parts, [&](int part, int thread) {
        for (volatile int n = 0; n < part % 7 * 200; n = n + 1) {
        }
        taken[size_t(part)] += thread < threads ? 1 : 99;
      });
      for (int part : taken) expect(part == 1, "a part of a task is taken once");
    }
  }
}

}  // namespace

int main() {
  good(Made(1, 2, 1, 3), settings(3));     // one user
  good(Made(40, 11, 10, 0), settings(0));  // all items but one, no context
  good(Made(2, 900, 700, 1), settings(1));  // long lists of positives
  Settings none = settings(1);
  none.negatives = 0;
  good(Made(3, 1, 1, 1), none);  // one item
  bad("one item and no negative left", [](Made& made, Settings&) { made = Made(1, 1, 1, 2); });
  bad_data();
  bad_calls();
  for (int doubles : {0, 1}) messages(doubles);
  tasks();
  every_negative();
  no_number_in_the_context();
  random_shapes();
  std::printf("%d failures\n", failures);
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
