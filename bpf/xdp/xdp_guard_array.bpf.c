// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The guard for kernels without arenas, with its rules in an array. */
#define GUARD_IN_ARRAY
#include "xdp/guard_program.h"
