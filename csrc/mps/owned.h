// An Objective-C object that we own: released once, also when an exception passes.
#pragma once

#import <Foundation/Foundation.h>

#include <utility>

namespace tmf::mps {

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

}  // namespace tmf::mps
