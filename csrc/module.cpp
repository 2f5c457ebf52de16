// The Python module that carries the op library: importing it runs the registrations.
#include <Python.h>

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() {
  static PyModuleDef module = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
