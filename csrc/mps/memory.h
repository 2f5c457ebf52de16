// Ownership without ARC: an object that we own, and a pool for those that we do not.
#pragma once

#import <Foundation/Foundation.h>

#include <exception>
#include <utility>

namespace tmf::mps {

// An Objective-C object that we own: released once, also when an exception passes.
template <typename Object>
class Owned {
 public:
  explicit Owned(Object object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.give()) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { [object_ release]; }

  Object get() const { return object_; }
  // Hands the ownership over.
  Object give() { return std::exchange(object_, nil); }

 private:
  Object object_;
};

// Runs `work` in an autorelease pool. An exception waits until the pool is drained: passing through
// it, it would leave the pool open and all that the pool holds alive.
template <typename Work>
void in_pool(Work&& work) {
  std::exception_ptr failure;
  @autoreleasepool {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tmf::mps
