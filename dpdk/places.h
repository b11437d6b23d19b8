/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks of a capture in the primary process: one for each port, queue and direction. */
#ifndef TRAWL_DPDK_PLACES_H
#define TRAWL_DPDK_PLACES_H

#include <rte_bpf.h>
#include <rte_pdump.h>
#include <stdint.h>

#include "pool.h"

/* A callback that was removed may still be running for as long. */
#define PLACES_CALLBACK_US 100000

/* What callbacks are to do. */
struct places_request {
	const struct pool *pool;
	/* NULL takes all. */
	const struct rte_bpf_prm *filter;
	uint32_t snaplen;
	/* DIRECTION_..., together. */
	uint32_t directions;
	/* EXCHANGE_ALL_QUEUES for all. */
	uint32_t queue;
	/* Is called before this process ends because a callback cannot be had. */
	void (*give_up)(void);
};

/* To be called before callbacks are put anywhere. */
void places_begin(const char *directory);
/* Removes the callbacks of killed captures of trawl and dpdk-dumpcap, and frees what these left. */
void places_clear_dead(const char *directory);

/* Puts callbacks at a port. */
void places_enable(const struct places_request *request, uint16_t port);
void places_disable(void);

/* Adds the counts since callbacks were put there to those of their ports: an array of EXCHANGE_PORTS. */
void places_count(struct rte_pdump_stats *sums);

#endif
