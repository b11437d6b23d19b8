// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The guard for kernels that have no arenas. */
#define GUARD_IN_ARRAY
#include "include/guard_program.h"
