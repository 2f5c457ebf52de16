// Faults in words. @[+hex] is an address in the kernel's library, @[file:line] a place in the text.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "fiber.h"
#include "state.h"

namespace mh {
constexpr size_t MAX_FAULTS = 24;

inline std::string format(const char* text, va_list arguments) {
  char line[1024];
  vsnprintf(line, sizeof line, text, arguments);
  return line;
}
inline std::string words(const char* text, ...) __attribute__((format(printf, 1, 2)));
inline std::string words(const char* text, ...) {
  va_list arguments;
  va_start(arguments, text);
  std::string line = format(text, arguments);
  va_end(arguments);
  return line;
}
inline std::string place(Site site) { return words("@[%s:%d]", site.file, site.line); }
inline std::string place(const void* pc) { return words("@[+%x]", S->pc(pc)); }
inline std::string who(const Fiber* f) {
  return words("threadgroup %u thread %u", f->group->number, f->index);
}
inline std::string who(u32 id) {
  return words("threadgroup %u thread %u", (id - 1) / S->threads, (id - 1) % S->threads);
}

// Notes a fault; the launch goes on. One report for a pair of places.
inline void report(const char* kind, u32 pc1, u32 pc2, std::string message) {
  u64 key = u64(pc1) << 32 | pc2;
  if (S->reported[key * 31 + u8(kind[0])]++ || S->faults.size() >= MAX_FAULTS) return;
  S->faults.push_back({kind, std::move(message)});
}
// Notes a fault that ends the launch.
inline void fail(const char* kind, std::string message) {
  if (!S->aborted) S->faults.push_back({kind, std::move(message)});
  S->aborted = true;
}
// Leaves the current fiber for good. What lives on its stack is not destroyed.
[[noreturn]] inline void leave() {
  current = nullptr;
  mh_jump(S->main_sp);
}

// The name of a place in memory: variable or buffer, with the offset in bytes.
inline std::string name_of(const void* address) {
  const char* p = static_cast<const char*>(address);
  if (current) {
    Group* g = current->group;
    if (p >= g->memory && p < g->memory + g->capacity) {
      size_t offset = size_t(p - g->memory);
      for (auto& v : g->variables)
        if (offset >= v.offset && offset < v.offset + v.bytes)
          return words("threadgroup `%s` + %zu", v.name, offset - v.offset);
      return words("threadgroup memory + %zu", offset);
    }
  }
  for (u32 i = 0; i < S->launch->buffer_count; ++i) {
    const char* base = static_cast<const char*>(S->buffers[i]);
    if (base && p >= base && p < base + S->launch->buffers[i].bytes)
      return words("device `%s` + %zu", S->launch->buffers[i].name, size_t(p - base));
  }
  return "memory of no buffer";
}
std::string waiting();  // who waits where for what
}  // namespace mh
