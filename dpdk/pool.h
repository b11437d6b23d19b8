/* SPDX-License-Identifier: Apache-2.0 */
/* The pool that copies of packets lie in and the ring that they come by, in the memory of the primary process. */
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

/* Gives this process's table of pool operations the primary's order, as far as it matters: false where the primary has
 * no pool to learn it from. To be called before anything is made. */
bool pool_learn_operations(void);
/* False with rte_errno set. `packet` is the longest copy that is to fit one buffer. */
bool pool_make(struct pool *pool, uint32_t packet);
void pool_free(struct pool *pool);

/* Frees what a dead process of that PID has left; `stem` begins its names. */
void pool_free_of(const char *stem, int pid);
/* Whether a process of that PID made its ring in this primary's memory. */
bool pool_is_there(int pid);

#endif
