// The target PTX. Not there yet: see target.h for what a target provides.
#pragma once
#error "the PTX target is not built yet"
