// The one way to name an instance of a kernel.
#pragma once
#include "math.h"

#define TMF_KERNEL(host, function, ...)   \
  template [[host_name(host)]] [[kernel]] \
  decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
