// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The guard, with its rules in an arena. */
#include "xdp/guard_program.h"
