// Relaxed atomics: where threads meet without waiting, and so where schedules branch.
#include "order.h"
#include "report.h"
#include "schedule.h"
#include "shadow.h"
#include "versions.h"
#include "wait.h"

namespace mh {
namespace {
constexpr u32 BYTES[] = {4, 4, 4, 8, 1};

template <class T>
T combined(u32 op, T a, T b) {
  switch (op) {
    case MH_ADD:
      return T(a + b);
    case MH_SUB:
      return T(a - b);
    case MH_MIN:
      return b < a ? b : a;
    case MH_MAX:
      return a < b ? b : a;
    default:
      return b;  // store, exchange
  }
}
u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
float float_of(u64 x) { return __builtin_bit_cast(float, u32(x)); }

u64 result(u32 op, u32 type, u64 old, u64 value) {
  switch (op) {
    case MH_AND:
      return old & value;
    case MH_OR:
      return old | value;
    case MH_XOR:
      return old ^ value;
    default:
      break;
  }
  switch (type) {
    case MH_I32:
      return u32(combined<int32_t>(op, int32_t(old), int32_t(value)));
    case MH_F32:
      return bits_of(combined<float>(op, float_of(old), float_of(value)));
    case MH_U32:
      return combined<u32>(op, u32(old), u32(value));
    case MH_U8:
      return combined<u8>(op, u8(old), u8(value));
    default:
      return combined<u64>(op, old, value);
  }
}

// The operation itself; really atomic, since other OS threads may run other threadgroups.
template <class T>
u64 perform(T* p, u32 op, u32 type, u64 value, u64* expected, bool& wrote, bool& changed) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  for (;;) {
    if (op == MH_LOAD || (op == MH_COMPARE_EXCHANGE && old != T(*expected))) return old;
    T next = op == MH_COMPARE_EXCHANGE ? T(value) : T(result(op, type, old, value));
    if (__atomic_compare_exchange_n(p, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
      wrote = true;
      changed = next != old;
      return old;
    }
  }
}

u64 dispatch(void* p, u32 op, u32 type, u64 value, u64* expected, bool& wrote, bool& changed) {
  switch (BYTES[type]) {
    case 1:
      return perform(static_cast<u8*>(p), op, type, value, expected, wrote, changed);
    case 8:
      return perform(static_cast<u64*>(p), op, type, value, expected, wrote, changed);
    default:
      return perform(static_cast<u32*>(p), op, type, value, expected, wrote, changed);
  }
}

u64 newest(void* p, u32 type) {
  bool wrote = false, changed = false;
  return dispatch(p, MH_LOAD, type, 0, nullptr, wrote, changed);
}

// Has this thread read just this from there before? Looked up by equality only, since an order by
// address would differ from run to run. A loop over more places than fit is left to the time limit.
bool seen_before(Fiber* f, const void* p, u64 value) {
  constexpr u32 PLACES = 64;
  if (!f->seen) f->seen = std::make_unique<Seen[]>(PLACES);
  Seen* const table = f->seen.get();
  Seen* s = table;
  while (s < table + std::min(f->seen_count, PLACES) && s->place != p) ++s;
  if (s == table + std::min(f->seen_count, PLACES)) {
    table[f->seen_count++ % PLACES] = {p, value};
    return false;
  }
  bool same = s->value == value;
  s->value = value;
  return same;
}
}  // namespace
}  // namespace mh

using namespace mh;
extern "C" u64 mh_atomic(void* p, u32 op, u32 type, u64 value, u64* expected) {
  Fiber* f = current;
  const void* pc = __builtin_return_address(0);
  if (S->aborted) leave();
  S->counts.atomics++;
  f->group->events++;
  if (S->exploring() || S->o.preempt || S->o.lost) yield(false);
  if (S->o.check) {
    u32 how = op == MH_LOAD ? ATOMIC : op == MH_STORE ? ATOMIC | WRITE : ATOMIC | WRITE | MODIFY;
    note_access(p, BYTES[type], how, pc);
  }
  bool wrote = false, changed = false;
  f->entered = pc;
  u64 old = dispatch(p, op, type, value, expected, wrote, changed);
  f->entered = nullptr;
  if (S->checking()) {
    if (op == MH_LOAD && S->o.stale)
      old = load_version(f, p, old);
    else if (op != MH_STORE)
      atomic_read(f, p);
    if (wrote) atomic_written(f, p, op != MH_STORE);
    if (S->o.stale && wrote)
      note_version(f, p, old, newest(p, type));
    else if (S->o.stale && op != MH_LOAD)
      saw_newest(f, p);
  }
  bool repeated = op != MH_STORE && !changed && seen_before(f, p, old);
  if (!S->o.allow_simdgroup_spin && !S->shared_next) {
    if (op != MH_STORE) lane_read(f, p, pc, repeated);
    if (wrote) lane_wrote(f, p);
  }
  if (changed) note_progress();
  if (changed || op == MH_STORE) f->read_pc = nullptr;
  if (!repeated) {
    f->poll = {};
    return old;
  }
  f->poll = {p, old, pc};
  note_poll();
  yield(true);
  return old;
}
