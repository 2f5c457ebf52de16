// Foundation's reference counting over GCC's Objective-C runtime, strict: an object that died keeps
// its memory and answers every message with a fault.
#import <Foundation/Foundation.h>
#import <objc/message.h>
#import <objc/runtime.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ledger.h"

// What dead objects become.
__attribute__((objc_root_class))
@interface FakeDead {
  Class isa;
}
@end
@implementation FakeDead
@end

namespace fake {
namespace {

struct Objects {
  std::mutex mutex;
  std::string faults;
  std::unordered_map<const void*, long> counts;
  std::unordered_map<const void*, std::string> dead;
  std::map<std::string, long> live;
};

Objects& objects() {
  static auto* all = new Objects;
  return *all;
}

thread_local std::vector<std::vector<id>> pools;

id nothing(id, SEL) { return nil; }

// Called for a selector that the receiver has no method for.
IMP unanswered(id receiver, SEL selector) {
  std::string who;
  {
    Objects& all = objects();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.dead.find((const void*)receiver);
    who = found == all.dead.end() ? std::string("no method of ") + object_getClassName(receiver)
                                  : "message to a dead " + found->second;
  }
  fault(who + ": " + sel_getName(selector));
  return (IMP)nothing;
}

id born(Class cls) {
  id object = class_createInstance(cls, 0);
  Objects& all = objects();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.counts[(const void*)object] = 1;
  ++all.live[class_getName(cls)];
  return object;
}

void died(id object) {
  Objects& all = objects();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::string cls = object_getClassName(object);
  all.counts.erase((const void*)object);
  all.dead[(const void*)object] = cls;
  --all.live[cls];
  object_setClass(object, objc_getClass("FakeDead"));
}

long count(id object, long change) {
  Objects& all = objects();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.counts.at((const void*)object) += change;
}

const bool hooked = [] {
  __objc_msg_forward2 = unanswered;
  return true;
}();

}  // namespace

void fault(const std::string& text) {
  Objects& all = objects();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.faults += text + "\n";
}

void refuse(const std::string& text) {
  fault(text);
  throw std::runtime_error("fake Metal: " + text);
}

std::string take_faults() {
  Objects& all = objects();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return std::exchange(all.faults, {});
}

long live_objects(const std::string& cls) {
  Objects& all = objects();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!cls.empty()) return all.live[cls];
  long sum = 0;
  for (const auto& [name, number] : all.live) sum += number;
  return sum;
}

int open_pools() { return static_cast<int>(pools.size()); }

void close_pools(size_t kept) {
  while (pools.size() > kept) {
    const std::vector<id> held = std::move(pools.back());
    pools.pop_back();
    for (id object : held) [object release];
  }
}

Counters& counters() {
  static Counters all;
  return all;
}

}  // namespace fake

@implementation NSObject
+ (instancetype)alloc {
  return fake::born(self);
}
- (instancetype)init {
  return self;
}
- (instancetype)retain {
  fake::count(self, 1);
  return self;
}
- (oneway void)release {
  if (fake::count(self, -1) == 0) [self dealloc];
}
- (instancetype)autorelease {
  if (fake::pools.empty()) {
    fake::fault(std::string("autoreleased without a pool: ") + object_getClassName(self));
  } else {
    fake::pools.back().push_back(self);
  }
  return self;
}
- (void)dealloc {
  fake::died(self);
}
@end

// Draining a pool also drains those that were opened after it and never closed, as Apple's do.
@implementation NSAutoreleasePool
- (instancetype)init {
  fake::pools.emplace_back();
  data = reinterpret_cast<void*>(fake::pools.size());
  return self;
}
- (void)drain {
  const auto depth = reinterpret_cast<size_t>(data);
  if (fake::pools.size() != depth) fake::fault("a pool was left open");
  fake::close_pools(depth - 1);
  [self release];
}
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char*)given {
  NSString* made = [[self alloc] init];
  made->data = strdup(given);
  return [made autorelease];
}
- (const char*)UTF8String {
  return static_cast<char*>(data);
}
- (void)dealloc {
  auto* text = static_cast<char*>(data);
  memset(text, '?', strlen(text));  // and kept, so that a late reader sees it
  [super dealloc];
}
@end

@implementation NSError
+ (instancetype)errorWithText:(const char*)given {
  NSError* made = [[self alloc] init];
  made->data = [[NSString stringWithUTF8String:given] retain];
  return [made autorelease];
}
- (NSString*)localizedDescription {
  return static_cast<NSString*>(data);
}
- (void)dealloc {
  [static_cast<NSString*>(data) release];
  [super dealloc];
}
@end

namespace fake {
NSError* error(const std::string& text) { return [NSError errorWithText:text.c_str()]; }
}  // namespace fake
