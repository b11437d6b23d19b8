/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a capture from its first callback to its last block. */
#ifndef TRAWL_DPDK_CAPTURE_H
#define TRAWL_DPDK_CAPTURE_H

#include <stdbool.h>

#include "exchange_types.h"

/* Records until trawl stops the capture, or trawl or the primary is gone. Returns true if the primary is alive. */
bool capture(struct exchange *exchange, const char *directory, const char *ports);

#endif
