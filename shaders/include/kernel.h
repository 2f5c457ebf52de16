// Opens every .metal file: the library, and the one way to name an instance.
#pragma once
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;
#include "math.h"

#define TMF_KERNEL(host, function, ...)    \
  template [[host_name(host)]] [[kernel]] \
  decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
