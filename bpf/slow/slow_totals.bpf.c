// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Keeps totals of processes. */
#define WITH_TOTALS true
#include "slow/measures.h"
