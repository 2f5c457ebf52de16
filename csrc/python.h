// The interpreter, for the few things that the ops ask of Python: kernels compiled on first use.
#pragma once

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <memory>

namespace tmf::python {

// Holds the lock of the interpreter: ops may run without it.
class Lock {
 public:
  // Throws, saying that `who` is compiled by Python, where there is no interpreter.
  explicit Lock(const char* who);
  ~Lock() { PyGILState_Release(state_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  PyGILState_STATE state_;
};

struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Object = std::unique_ptr<PyObject, Release>;

// The pending exception as an error of the op.
[[noreturn]] void rethrow(const char* what);

// The object, or the pending exception.
Object owned(PyObject* object, const char* what);

Object import(const char* module);

}  // namespace tmf::python
