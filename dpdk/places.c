/* SPDX-License-Identifier: Apache-2.0 */
/* Enables, counts and removes callbacks in the primary, including those of killed captures. */
#include "places.h"

#include <errno.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_memzone.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "exchange_types.h"
#include "owner.h"
#include "say.h"

#define PLACES 1024
/* Maximum number of killed dpdk-dumpcap processes to clean up after. */
#define DUMPCAPS 16

/* Counts of all queues, in the framework's shared memory. rte_pdump_stats() returns the sum of a port's counts, which
 * may include those of another capture. */
struct all_counts {
	struct rte_pdump_stats received[RTE_MAX_ETHPORTS][RTE_MAX_QUEUES_PER_PORT];
	struct rte_pdump_stats sent[RTE_MAX_ETHPORTS][RTE_MAX_QUEUES_PER_PORT];
};

/* Mark in a field that the framework does not use. Some versions of the framework reset the counts when a callback is
 * enabled, which removes the mark. */
#define MARK 0x74726177
#define MARKED 3

static struct {
	const char *directory;
	struct place places[PLACES];
	struct rte_pdump_stats before[PLACES];
	/* Number of callbacks in the primary, and number of places whose counts belong to this capture. */
	unsigned int place_count;
	unsigned int counted;
	struct all_counts *counts;
} state;

static uint32_t flags_of(uint32_t direction)
{
	return direction == DIRECTION_RECEIVED ? RTE_PDUMP_FLAG_RX : RTE_PDUMP_FLAG_TX;
}

/* The following functions remove callbacks of killed captures. */

static void clear_place(struct place place, int pid)
{
	if (rte_pdump_disable(place.port, place.queue, flags_of(place.direction)) == 0)
		say("cleared\t%u\t%d", place.port, pid);
}

static void release(int pid)
{
	usleep(PLACES_CALLBACK_US);
	pool_free_of("trawl", pid);
}

/* Captures of other programs. dpdk-dumpcap keeps no record of its callbacks, but its ring's name contains its PID.
 * dpdk-pdump keeps no record either, and its rings do not show whether it is alive. */
struct others {
	int dead;
	int alive;
	bool pdump;
};

static bool begins(const char *name, const char *stem)
{
	return strncmp(name, stem, strlen(stem)) == 0;
}

static void find_others(const struct rte_memzone *zone, void *argument)
{
	const char *stem = RTE_RING_MZ_PREFIX "dumpcap-";
	struct others *found = argument;
	int pid;

	if (begins(zone->name, RTE_RING_MZ_PREFIX "rx_ring_") || begins(zone->name, RTE_RING_MZ_PREFIX "tx_ring_"))
		found->pdump = true;
	if (!begins(zone->name, stem))
		return;
	pid = atoi(zone->name + strlen(stem));
	if (kill(pid, 0) != 0 && errno == ESRCH)
		found->dead = pid;
	else
		found->alive = pid;
}

/* Removes all callbacks of a port, except callbacks of live captures of trawl. */
static void clear_port(const char *directory, uint16_t port, int pid)
{
	struct rte_eth_dev_info info = { 0 };

	rte_eth_dev_info_get(port, &info);
	for (uint32_t direction = DIRECTION_RECEIVED; direction <= DIRECTION_SENT; direction++) {
		uint16_t queues = direction == DIRECTION_RECEIVED ? info.nb_rx_queues : info.nb_tx_queues;

		for (uint16_t queue = 0; queue < queues; queue++) {
			struct place place = { port, queue, direction };

			if (owner_of(directory, place) == 0)
				clear_place(place, pid);
		}
	}
}

/* Cleans up after killed dpdk-dumpcap processes. A callback continues to use the ring and the pool, so these are freed
 * only if no callback can be left. They are not freed while another program captures, because its callbacks cannot be
 * distinguished from the dead process's. */
static void clear_dumpcaps(const char *directory)
{
	for (int attempt = 0; attempt < DUMPCAPS; attempt++) {
		struct others found = { 0 };
		uint16_t port;

		rte_memzone_walk(find_others, &found);
		if (!found.dead || found.alive || found.pdump)
			return;
		RTE_ETH_FOREACH_DEV(port)
			clear_port(directory, port, found.dead);
		usleep(PLACES_CALLBACK_US);
		pool_free_of("dumpcap", found.dead);
	}
}

void places_clear_dead(const char *directory)
{
	owner_clear_dead(directory, clear_place, release, pool_is_there);
	clear_dumpcaps(directory);
}

/* Returns the PID of the owner of a conflicting callback, or 0 if it is unknown. */
static int conflicting_owner(struct place place)
{
	struct others found = { 0 };
	int owner = owner_of(state.directory, place);

	rte_memzone_walk(find_others, &found);
	return owner ? owner : found.alive;
}

/* The following functions enable, count and remove callbacks of this capture. */

void places_begin(const char *directory)
{
	const struct rte_memzone *zone = rte_memzone_lookup("rte_pdump_stats");

	if (!zone || zone->len < sizeof(struct all_counts))
		fail("no_pdump");
	state.counts = zone->addr;
	state.directory = directory;
}

void places_disable(void)
{
	while (state.place_count > 0) {
		struct place place = state.places[--state.place_count];

		rte_pdump_disable(place.port, place.queue, flags_of(place.direction));
	}
}

static struct rte_pdump_stats *counts_of(struct place place)
{
	struct all_counts *counts = state.counts;

	return place.direction == DIRECTION_RECEIVED ? &counts->received[place.port][place.queue] :
						       &counts->sent[place.port][place.queue];
}

/* Notes an enabled callback, with the counts from which its own are counted. These are zero if the framework has reset
 * them. */
static void note_enabled(struct place place, const struct rte_pdump_stats *before)
{
	struct rte_pdump_stats *counts = counts_of(place);
	bool continues = counts->reserved[MARKED] == MARK;

	counts->reserved[MARKED] = 0;
	state.before[state.place_count] = continues ? *before : (struct rte_pdump_stats){ 0 };
	state.places[state.place_count++] = place;
	state.counted = state.place_count;
}

static void enable(const struct places_request *request, struct place place)
{
	struct rte_pdump_stats *counts = counts_of(place), before = *counts;
	int error;

	if (state.place_count == PLACES) {
		request->give_up();
		fail("places\t%d", PLACES);
	}
	owner_note(place);
	counts->reserved[MARKED] = MARK;
	if (rte_pdump_enable_bpf(place.port, place.queue, flags_of(place.direction) | RTE_PDUMP_FLAG_PCAPNG,
				 request->snaplen, request->pool->ring, request->pool->buffers, request->filter) == 0) {
		note_enabled(place, &before);
		return;
	}
	/* An error from the primary's answer is negative, and an error of this process is positive. */
	error = abs(rte_errno);
	counts->reserved[MARKED] = 0;
	request->give_up();
	if (error == EEXIST)
		fail("exists\t%u\t%d", place.port, conflicting_owner(place));
	fail("pdump\t%u\t%s", place.port, rte_strerror(error));
}

void places_enable(const struct places_request *request, uint16_t port)
{
	struct rte_eth_dev_info info = { 0 };

	rte_eth_dev_info_get(port, &info);
	for (uint32_t direction = DIRECTION_RECEIVED; direction <= DIRECTION_SENT; direction++) {
		uint16_t queues = direction == DIRECTION_RECEIVED ? info.nb_rx_queues : info.nb_tx_queues;

		if (!(request->directions & direction))
			continue;
		for (uint16_t queue = 0; queue < queues; queue++)
			if (request->queue == EXCHANGE_ALL_QUEUES || request->queue == queue)
				enable(request, (struct place){ port, queue, direction });
	}
}

void places_count(struct rte_pdump_stats *sums)
{
	for (unsigned int i = 0; i < state.counted; i++) {
		const struct rte_pdump_stats *now = counts_of(state.places[i]), *before = &state.before[i];
		struct rte_pdump_stats *sum = &sums[state.places[i].port];

		sum->accepted += now->accepted - before->accepted;
		sum->filtered += now->filtered - before->filtered;
		sum->nombuf += now->nombuf - before->nombuf;
		sum->ringfull += now->ringfull - before->ringfull;
	}
}
