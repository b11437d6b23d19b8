/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks of a capture in the primary process, one for each port, queue and direction. */
#ifndef TRAWL_DPDK_PLACES_H
#define TRAWL_DPDK_PLACES_H

#include <rte_bpf.h>
#include <rte_pdump.h>
#include <stdint.h>

#include "pool.h"

/* Maximum time for which a removed callback may still run. */
#define PLACES_CALLBACK_US 100000

/* The parameters of callbacks. */
struct places_request {
	const struct pool *pool;
	/* The filter, or NULL to accept all packets. */
	const struct rte_bpf_prm *filter;
	uint32_t snaplen;
	/* A combination of DIRECTION_.... */
	uint32_t directions;
	/* The queue, or EXCHANGE_ALL_QUEUES for all. */
	uint32_t queue;
	/* This function is called before this process ends because a callback cannot be enabled. */
	void (*give_up)(void);
};

/* Finds the framework's counts. It must be called before callbacks are enabled. */
void places_begin(const char *directory);
/* Removes the callbacks of killed captures of trawl and dpdk-dumpcap, and frees the memory that they have left. */
void places_clear_dead(const char *directory);

/* Enables callbacks at a port. */
void places_enable(const struct places_request *request, uint16_t port);
void places_disable(void);

/* Adds the counts since callbacks were enabled to the sums of their ports, an array of EXCHANGE_PORTS. */
void places_count(struct rte_pdump_stats *sums);

#endif
