/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and frees objects in the memory that two processes share.
 *
 * A pool identifies its operations by their index in a table that each process fills in the order in which it loads
 * its libraries. The primary takes buffers out of our pool by its own table. If the orders differ, it calls the
 * operations of another kind of pool, or none. The primary's own pools show its index for our operations. */
#include "pool.h"

#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_memzone.h>
#include <rte_pcapng.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OPERATIONS "ring_mp_mc"
#define RING "trawl_%d"
#define BUFFERS "trawl_pool_%d"
/* The ring of a pool holds one less than a power of two. */
#define MAX_BUFFERS 32767u
#define MIN_BUFFERS 1023
#define MAX_MEMORY (128u << 20)

struct found {
	int place;
};

/* Finds the index of a pool with a ring of its own name that any thread may put to and take from. */
static void find_operations(struct rte_mempool *mp, void *argument)
{
	struct found *found = argument;
	char name[RTE_RING_NAMESIZE];
	struct rte_ring *ring;

	snprintf(name, sizeof(name), RTE_MEMPOOL_MZ_FORMAT, mp->name);
	ring = rte_ring_lookup(name);
	if (found->place < 0 && ring && mp->pool_data == ring && ring->prod.sync_type == RTE_RING_SYNC_MT &&
	    ring->cons.sync_type == RTE_RING_SYNC_MT)
		found->place = mp->ops_index;
}

bool pool_learn_operations(void)
{
	struct rte_mempool_ops_table *table = &rte_mempool_ops_table;
	struct found found = { .place = -1 };
	struct rte_mempool_ops ours = { 0 };
	uint32_t own;

	rte_mempool_walk(find_operations, &found);
	if (found.place < 0 || found.place >= RTE_MEMPOOL_MAX_OPS_IDX)
		return false;
	for (own = 0; own < table->num_ops; own++)
		if (strcmp(table->ops[own].name, OPERATIONS) == 0)
			break;
	if (own == table->num_ops)
		return false;
	rte_spinlock_lock(&table->sl);
	ours = table->ops[own];
	table->ops[own] = table->ops[found.place];
	table->ops[found.place] = ours;
	if (table->num_ops <= (uint32_t)found.place)
		table->num_ops = found.place + 1;
	rte_spinlock_unlock(&table->sl);
	return true;
}

bool pool_make(struct pool *pool, uint32_t packet)
{
	uint32_t room = RTE_MIN(rte_pcapng_mbuf_size(packet) + RTE_PKTMBUF_HEADROOM, (uint32_t)UINT16_MAX);
	uint32_t count = RTE_MIN(MAX_BUFFERS, rte_align32prevpow2(MAX_MEMORY / room) - 1);
	char name[RTE_MEMPOOL_NAMESIZE];

	snprintf(name, sizeof(name), BUFFERS, getpid());
	for (; count >= MIN_BUFFERS; count /= 2) {
		pool->buffers = rte_pktmbuf_pool_create_by_ops(name, count, 0, 0, room, SOCKET_ID_ANY, OPERATIONS);
		if (pool->buffers || rte_errno != ENOMEM)
			break;
	}
	if (!pool->buffers)
		return false;
	snprintf(name, sizeof(name), RING, getpid());
	/* The ring is at least as large as the pool, so that buffers run out first, which the framework counts. */
	pool->ring = rte_ring_create(name, rte_align32pow2(count + 1), SOCKET_ID_ANY, 0);
	if (pool->ring)
		return true;
	rte_mempool_free(pool->buffers);
	return false;
}

void pool_free(struct pool *pool)
{
	rte_ring_free(pool->ring);
	rte_mempool_free(pool->buffers);
}

static void free_zone(struct rte_mempool_memhdr *chunk, void *zone)
{
	(void)chunk;
	rte_memzone_free(zone);
}

void pool_free_of(const char *stem, int pid)
{
	struct rte_mempool_memhdr *chunk;
	struct rte_mempool *buffers;
	char name[64];

	snprintf(name, sizeof(name), strcmp(stem, "trawl") == 0 ? RING : "dumpcap-%d", pid);
	rte_ring_free(rte_ring_lookup(name));
	snprintf(name, sizeof(name), strcmp(stem, "trawl") == 0 ? BUFFERS : "capture_%d", pid);
	buffers = rte_mempool_lookup(name);
	if (!buffers)
		return;
	/* The pool's function for freeing chunks must be replaced, because it is at an address in the dead process. */
	STAILQ_FOREACH(chunk, &buffers->mem_list, next)
		chunk->free_cb = free_zone;
	rte_mempool_free(buffers);
}

bool pool_is_there(int pid)
{
	char name[RTE_RING_NAMESIZE];

	snprintf(name, sizeof(name), RING, pid);
	return rte_ring_lookup(name) != NULL;
}
