#include "shadow.h"

#include <sys/mman.h>

#include <new>

#include "isolate.h"
#include "order.h"
#include "report.h"
#include "schedule.h"

namespace mh {
namespace {
enum Flags : u8 {
  UNWRITTEN = 1,       // its content means nothing yet
  LAST_ATOMIC = 2,     // the last write was atomic
  WROTE_COHERENT = 4,  // the last plain write
  EVER_READ = 8,
  EVER_WRITTEN = 16,
  READ0_ATOMIC = 32,  // and READ0_ATOMIC << 1 for the second
};
// A smaller granule for accesses that do not fit the present one.
void refine(Region& r, u32 shift) {
  u32 copies = 1u << (r.shift - shift);
  const Cells& old = r.cells;
  Cells finer(old.size() * copies);
  for (size_t i = 0; i < old.size(); ++i)
    if (old[i].flags)
      for (u32 k = 0; k < copies; ++k) finer[i * copies + k] = old[i];
  r.cells = std::move(finer);
  r.shift = shift;
}

const char* word(u32 how) {
  if (how & ATOMIC) return how & WRITE ? "atomic write" : "atomic read";
  return how & WRITE ? "write" : "read";
}

struct Check {
  Fiber* f;
  Space space;
  const char* address;
  u32 how, pc;
  const void* at;
  Region* region;

  void race(const Access& other, const char* other_word) const {
    report("race", pc, other.pc,
           std::string(word(how)) + " of " + name_of(address) + " by " + who(f) + " at " +
               place(at) + " is not ordered after the " + other_word + " by " + who(other.id) +
               words(" at @[+%x]", other.pc));
  }
  // Data of another threadgroup, in order, but not through coherent(device) on both sides.
  void crosses(const Cell& c) const {
    bool last_atomic = c.flags & LAST_ATOMIC;
    const Access& last = last_atomic ? c.atomic : c.write;
    bool theirs = last_atomic || c.flags & WROTE_COHERENT, mine = how & (ATOMIC | COHERENT);
    if ((theirs && mine) || (last.id - 1) / S->threads == f->group->number) return;
    const char* side = theirs ? "this access does not go"
                       : mine ? "that write does not go"
                              : "neither goes";
    report("coherence", pc, last.pc,
           std::string(word(how)) + " of " + name_of(address) + " by " + who(f) + " at " +
               place(at) + " meets the write by " + who(last.id) + words(" at @[+%x]", last.pc) +
               " of another threadgroup, and " + side + " through a coherent(device) pointer");
  }
  void count(Cell& c) const {
    u8 flag = how & WRITE ? EVER_WRITTEN : EVER_READ;
    if (c.flags & flag) return;
    c.flags |= flag;
    if (!region->counts) return;  // threadgroup memory
    u64& distinct = how & WRITE ? region->counts->written_distinct : region->counts->read_distinct;
    distinct += u64(1) << region->shift;
  }
  bool ordered(const Access& other, const char* other_word) const {
    if (!other.id || before(other.id, other.time, f, space)) return true;
    race(other, other_word);
    return false;
  }
  void against_writes(const Cell& c) const {
    if (!ordered(c.write, "write")) return;
    if (!(how & ATOMIC) && !ordered(c.atomic, "atomic write")) return;
    if (space == DEVICE && (c.write.id || c.atomic.id)) crosses(c);
  }
  void against_reads(const Cell& c) const {
    for (int i = 0; i < 2; ++i) {
      bool atomic = c.flags & (READ0_ATOMIC << i);
      if (!(how & ATOMIC && atomic)) ordered(c.read[i], atomic ? "atomic read" : "read");
    }
  }
  void needs_value(const Cell& c) const {
    if (!(c.flags & UNWRITTEN)) return;
    report("uninitialised", pc, 2,
           std::string(how & MODIFY ? "atomic update" : word(how)) + " of " + name_of(address) +
               " by " + who(f) + " at " + place(at) + " before anything was written there");
  }
  void write(Cell& c) const {
    if (how & MODIFY) needs_value(c);
    against_writes(c);
    against_reads(c);
    Access now{f->id + 1, f->order.time, pc};
    if (how & ATOMIC) {
      c.atomic = now;
      c.flags = u8((c.flags & ~UNWRITTEN) | LAST_ATOMIC);
      return;
    }
    c.write = now;
    c.atomic.id = c.read[0].id = c.read[1].id = 0;
    u8 kept = c.flags & (EVER_READ | EVER_WRITTEN);
    c.flags = u8(kept | (how & COHERENT ? WROTE_COHERENT : 0));
  }
  void read(Cell& c) const {
    needs_value(c);
    against_writes(c);
    int slot = free_slot(c);
    c.read[slot] = {f->id + 1, f->order.time, pc};
    u8 atomic_bit = u8(READ0_ATOMIC << slot);
    c.flags = u8(how & ATOMIC ? c.flags | atomic_bit : c.flags & ~atomic_bit);
  }
  // Replaces a read that this one follows, else any.
  int free_slot(const Cell& c) const {
    for (int i = 0; i < 2; ++i)
      if (!c.read[i].id || before(c.read[i].id, c.read[i].time, f, space)) return i;
    return int(S->random() & 1);
  }
};

Region* find_region(const char* p, u32 bytes) {
  Region* r = S->last_region;
  if (r && p >= r->lo && p + bytes <= r->hi) return r;
  for (Region& x : S->regions)
    if (p >= x.lo && p + bytes <= x.hi) return S->last_region = &x;
  return nullptr;
}

const Variable* find_variable(const Group* g, size_t offset, u32 bytes) {
  for (const Variable& v : g->variables)
    if (offset >= v.offset && offset + bytes <= v.offset + v.bytes) return &v;
  return nullptr;
}

void outside_threadgroup(Fiber* f, const char* p, u32 bytes, u32 how, const void* pc) {
  size_t offset = size_t(p - f->group->memory);
  const Variable* near = nullptr;
  for (const Variable& v : f->group->variables)
    if (v.offset <= offset && (!near || v.offset > near->offset)) near = &v;
  std::string where = near ? words("threadgroup `%s` of %zu bytes at offset %zu", near->name,
                                   near->bytes, offset - near->offset)
                           : "threadgroup memory that no variable has";
  report(
      "bounds", S->pc(pc), 1,
      words("%s of %u bytes of ", word(how), bytes) + where + " by " + who(f) + " at " + place(pc));
}

void outside(Fiber* f, const char* p, u32 bytes, u32 how, const void* pc) {
  const Region* near = nullptr;
  for (const Region& r : S->regions)
    if (p + bytes > r.lo - GUARD && p < r.hi + GUARD) near = &r;
  std::string where = near ? words("device `%s` of %lld bytes at offset %lld", near->name,
                                   (long long)(near->hi - near->lo), (long long)(p - near->lo))
                           : "an address outside every buffer";
  std::string text =
      words("%s of %u bytes of ", word(how), bytes) + where + " by " + who(f) + " at " + place(pc);
  if (near) {
    report("bounds", S->pc(pc), 0, std::move(text));
    return;
  }
  fail("bounds", std::move(text));
  where.~basic_string();
  leave();
}

// A thread that reads one unchanged place over and over waits for another.
void maybe_polls(Fiber* f, const void* p, u32 bytes, const void* pc) {
  if (f->read_place != p || f->read_pc != pc) {
    f->read_place = p;
    f->read_pc = pc;
    f->read_count = 0;
    return;
  }
  if (++f->read_count < 64) return;
  u64 value = 0;
  memcpy(&value, p, std::min(bytes, 8u));
  if (value != f->poll.value || f->poll.pc != pc) note_progress();
  f->poll = {p, value, pc};
  note_poll();
  yield(true);
}
}  // namespace

Cells::Cells(size_t count) : count_(count) {
  if (!count) return;
  void* p = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  cells_ = static_cast<Cell*>(p);
}
Cells::~Cells() {
  if (cells_) munmap(cells_, count_ * sizeof(Cell));
}

void start_shadow(Region& r, char* lo, char* hi) {
  r.lo = lo;
  r.hi = hi;
  r.shift = 2;
  r.cells = Cells(size_t(hi - lo) / 4 + 2);
}

void mark_unwritten(Region& r, size_t offset, size_t bytes) {
  size_t end = std::min(((offset + bytes) >> r.shift) + 1, r.cells.size());
  for (size_t i = offset >> r.shift; i < end; ++i) {
    r.cells[i] = Cell{};
    r.cells[i].flags = UNWRITTEN;
  }
}

namespace {
// The region of an access, counted there; null if there is nothing more to do about it.
Region* locate(Fiber* f, const char* p, u32 bytes, u32 how, const void* pc, Space& space) {
  Group* g = f->group;
  if (p >= g->memory && p < g->memory + g->capacity) {
    space = THREADGROUP;
    if (!(how & ATOMIC))
      (how & WRITE ? S->counts.threadgroup_written : S->counts.threadgroup_read) += bytes;
    if (!S->checking()) return nullptr;
    if (find_variable(g, size_t(p - g->memory), bytes)) return &g->shadow;
    outside_threadgroup(f, p, bytes, how, pc);
    return nullptr;
  }
  space = DEVICE;
  if (Region* r = find_region(p, bytes)) {
    if (how & ATOMIC)
      r->counts->atomics++;
    else
      (how & WRITE ? r->counts->written : r->counts->read) += bytes;
    return r;
  }
  bool table = !(how & WRITE) && p >= S->code_lo && p < S->code_hi;  // constants of the program
  if (!table) outside(f, p, bytes, how, pc);
  return nullptr;
}

void check_cells(const Check& check, size_t offset, u32 bytes) {
  Region& r = *check.region;
  while ((offset | bytes) & ((1u << r.shift) - 1)) refine(r, r.shift - 1);
  Cell* c = &r.cells[offset >> r.shift];
  for (u32 i = bytes >> r.shift; i--; ++c) {
    if (!(check.how & ATOMIC)) check.count(*c);
    if (S->checking()) check.how& WRITE ? check.write(*c) : check.read(*c);
  }
}
}  // namespace

void note_access(const void* address, u32 bytes, u32 how, const void* pc) {
  Fiber* f = current;
  if (!f || !S->o.check) return;
  const char* p = static_cast<const char*>(address);
  if (p >= f->group->stacks && p < f->group->stacks + f->group->stacks_bytes) return;
  if (S->aborted) leave();
  S->counts.accesses++;
  Space space;
  Region* r = locate(f, p, bytes, how, pc, space);
  if (!r) return;
  check_cells({f, space, p, how, S->pc(pc), pc, r}, size_t(p - r->lo), bytes);
  if (how & ATOMIC) return;
  if (how & WRITE)
    f->read_pc = nullptr;
  else
    maybe_polls(f, p, bytes, pc);
  if (S->o.preempt && S->random() % S->o.preempt == 0) {
    f->group->events++;
    yield(false);
  }
}
}  // namespace mh
