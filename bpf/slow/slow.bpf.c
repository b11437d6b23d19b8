// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Tells about sockets that have something to say, and about name servers. */
#define WITH_TOTALS false
#include "slow/measures.h"
