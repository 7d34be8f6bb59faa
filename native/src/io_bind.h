// The part of trivet._native that reads files.
#pragma once

#include <nanobind/nanobind.h>

void bind_io(nanobind::module_& module);
