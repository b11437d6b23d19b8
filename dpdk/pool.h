/* SPDX-License-Identifier: Apache-2.0 */
/* The pool for copies of packets and the ring that passes them on, in the memory of the primary process. */
#ifndef TRAWL_DPDK_POOL_H
#define TRAWL_DPDK_POOL_H

#include <rte_mempool.h>
#include <rte_ring.h>
#include <stdbool.h>
#include <stdint.h>

struct pool {
	struct rte_mempool *buffers;
	struct rte_ring *ring;
};

/* Gives this process's table of pool operations the primary's order, as far as trawl needs it. Returns false if the
 * primary has no pool that shows the order. It must be called before any object is created. */
bool pool_learn_operations(void);
/* Creates the pool and the ring. Returns false with rte_errno set on failure. `packet` is the longest copy that must
 * fit into one buffer. */
bool pool_make(struct pool *pool, uint32_t packet);
void pool_free(struct pool *pool);

/* Frees the memory that a dead process with that PID has left. `stem` names its program, trawl or dumpcap. */
void pool_free_of(const char *stem, int pid);
/* Returns true if a process with that PID created its ring in this primary's memory. */
bool pool_is_there(int pid);

#endif
