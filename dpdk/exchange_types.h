/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h with the kernel's names for integers. */
#ifndef TRAWL_DPDK_EXCHANGE_TYPES_H
#define TRAWL_DPDK_EXCHANGE_TYPES_H

#include <linux/types.h>

#include "exchange.h"

_Static_assert(sizeof(struct exchange) <= EXCHANGE_HEADER, "the header fits before the ring");

#endif
