#include "python.h"

#include <c10/util/Exception.h>

#include <string>

namespace tmf::python {

Lock::Lock(const char* who) {
  TORCH_CHECK(Py_IsInitialized(), "mps_fusion: ", who, " are compiled by Python");
  state_ = PyGILState_Ensure();
}

void rethrow(const char* what) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Object type_owner(type), value_owner(value), trace_owner(trace);
  const Object text(value == nullptr ? nullptr : PyObject_Str(value));
  const char* message = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text.get(), nullptr);
  const std::string found = message == nullptr ? "unknown error" : message;
  PyErr_Clear();
  TORCH_CHECK(false, "mps_fusion: ", what, ": ", found);
}

Object owned(PyObject* object, const char* what) {
  if (object == nullptr) rethrow(what);
  return Object(object);
}

Object import(const char* module) { return owned(PyImport_ImportModule(module), module); }

}  // namespace tmf::python
