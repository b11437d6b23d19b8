/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a capture from the request to its last block. It moves the blocks of copied packets from DPDK's ring to the
 * memory that it shares with trawl. */
#include "capture.h"

#include <errno.h>
#include <pcap/pcap.h>
#include <rte_bpf.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_pdump.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "owner.h"
#include "places.h"
#include "pool.h"
#include "say.h"

#define BURST 256
/* Time limit for freeing memory at the end, after which SIGALRM ends this process. trawl has all packets at that
 * time. */
#define MAX_FREEING_S 10

/* Longest pause of a thread of the primary between stamping a packet and putting it into the ring. */
#define LAG_NS 20000000ull
/* Pauses while no blocks arrive: shortly after the last block, and later. */
#define PAUSE_US 100
#define LONG_PAUSE_US 500
/* Copies of packets up to this length fit into one buffer. Longer ones need several. */
#define ONE_BUFFER 2048

/* A pcapng block as DPDK's capture framework in the primary builds it. */
struct block {
	uint32_t type;
	uint32_t length;
	uint32_t interface;
	uint32_t time_high;
	uint32_t time_low;
	uint32_t captured;
	uint32_t original;
};

static struct {
	struct exchange *exchange;
	unsigned char *ring;
	char config[512];
	pid_t parent;
	struct pool pool;
	struct rte_bpf_prm *filter;
	uint16_t ports[EXCHANGE_PORTS];
	unsigned int port_count;
	uint64_t head;
	/* The last value that was read of trawl's read position. */
	uint64_t tail;
	uint64_t newest;
	bool primary_ended;
} state;

static volatile sig_atomic_t terminated;

static void on_termination(int signal)
{
	(void)signal;
	terminated = 1;
}

static int failure(void)
{
	/* An error from the primary's answer is negative, and an error of this process is positive. */
	return rte_errno < 0 ? -rte_errno : rte_errno;
}

/* Removes the callbacks, and frees all memory that this process has allocated in the primary's. */
static void give_up(void)
{
	places_disable();
	usleep(PLACES_CALLBACK_US);
	pool_free(&state.pool);
	owner_end();
}

/* The following functions prepare a capture, before any callback is enabled. */

static void list_ports(char *text, size_t size)
{
	size_t used = 0;
	uint16_t port;

	text[0] = 0;
	RTE_ETH_FOREACH_DEV(port)
		used += snprintf(text + RTE_MIN(used, size - 1), size - RTE_MIN(used, size - 1), "%s%u",
				 used ? "," : "", port);
}

static void add_port(uint16_t port)
{
	struct exchange *exchange = state.exchange;
	struct rte_eth_dev_info info = { 0 };
	struct rte_ether_addr mac = { 0 };
	char name[RTE_ETH_NAME_MAX_LEN] = "", all[512];
	uint16_t queues = 0;

	if (port >= EXCHANGE_PORTS || !rte_eth_dev_is_valid_port(port)) {
		list_ports(all, sizeof(all));
		fail("no_port\t%u\t%s", port, all);
	}
	rte_eth_dev_info_get(port, &info);
	rte_eth_macaddr_get(port, &mac);
	rte_eth_dev_get_name_by_port(port, name);
	if (exchange->directions & DIRECTION_RECEIVED)
		queues = info.nb_rx_queues;
	if (exchange->directions & DIRECTION_SENT)
		queues = RTE_MAX(queues, info.nb_tx_queues);
	if (exchange->queue != EXCHANGE_ALL_QUEUES && exchange->queue >= queues)
		fail("no_queue\t%u\t%u\t%u\t%u", port, exchange->queue, info.nb_rx_queues, info.nb_tx_queues);
	say("port\t%u\t%s\t" RTE_ETHER_ADDR_PRT_FMT "\t%u\t%u", port, name, RTE_ETHER_ADDR_BYTES(&mac),
	    info.nb_rx_queues, info.nb_tx_queues);
	state.ports[state.port_count++] = port;
}

static void choose_ports(const char *ports)
{
	uint16_t port;

	if (!ports) {
		RTE_ETH_FOREACH_DEV(port)
			if (port < EXCHANGE_PORTS)
				add_port(port);
		if (state.port_count == 0)
			fail("no_port\tall\t");
		return;
	}
	for (char *end; *ports; ports = *end ? end + 1 : end) {
		unsigned long number = strtoul(ports, &end, 10);

		if (end == ports || (*end && *end != ',') || number > UINT16_MAX ||
		    state.port_count == EXCHANGE_PORTS)
			fail("usage\t'%s' is not a list of port numbers, such as 0,1", ports);
		add_port(number);
	}
}

static void convert_filter(void)
{
	static struct bpf_insn classic[EXCHANGE_FILTER_MAX];
	struct exchange *exchange = state.exchange;
	struct bpf_program program = { .bf_len = exchange->filter_length, .bf_insns = classic };

	if (exchange->filter_length == 0)
		return;
	if (exchange->filter_length > EXCHANGE_FILTER_MAX)
		fail("filter\t%u instructions are too many", exchange->filter_length);
	for (uint32_t i = 0; i < exchange->filter_length; i++) {
		struct exchange_instruction one = exchange->filter[i];

		classic[i] = (struct bpf_insn){ .code = one.operation & 0xffff, .jt = one.operation >> 16 & 0xff,
						.jf = one.operation >> 24, .k = one.k };
	}
	state.filter = rte_bpf_convert(&program);
	if (!state.filter)
		fail("filter\t%s", rte_strerror(failure()));
}

static uint32_t longest_packet(void)
{
	uint32_t longest = ONE_BUFFER;

	for (unsigned int i = 0; i < state.port_count; i++) {
		uint16_t mtu = 0;

		rte_eth_dev_get_mtu(state.ports[i], &mtu);
		longest = RTE_MAX(longest, (uint32_t)mtu + RTE_ETHER_HDR_LEN + 2 * RTE_VLAN_HLEN);
	}
	return RTE_MIN(longest, state.exchange->snaplen);
}

/* The following functions pass blocks from DPDK's ring to trawl. */

static uint64_t load(__u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(__u64 *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static bool trawl_is_gone(void)
{
	return getppid() != state.parent;
}

/* Waits for room for a block in the shared ring, and returns it, or NULL if trawl is gone. Blocks that arrive in the
 * meantime stay in DPDK's ring. */
static unsigned char *room(uint32_t length)
{
	struct exchange *exchange = state.exchange;
	uint64_t size = exchange->ring_bytes, at = state.head % size;
	uint64_t skipped = at + length > size ? size - at : 0;

	while (state.head + skipped + length - state.tail > size) {
		state.tail = load(&exchange->tail);
		if (state.head + skipped + length - state.tail <= size)
			break;
		store(&exchange->head, state.head);
		if (trawl_is_gone())
			return NULL;
		usleep(PAUSE_US / 2);
	}
	if (skipped) {
		memset(state.ring + at, 0, EXCHANGE_ALIGN);
		state.head += skipped;
		at = 0;
	}
	return state.ring + at;
}

static void copy_chain(unsigned char *to, const struct rte_mbuf *buffer)
{
	for (; buffer; buffer = buffer->next) {
		memcpy(to, rte_pktmbuf_mtod(buffer, void *), buffer->data_len);
		to += buffer->data_len;
	}
}

static bool hand_over(struct rte_mbuf *buffer, uint64_t now)
{
	struct block *block = rte_pktmbuf_mtod(buffer, struct block *);
	uint32_t length = RTE_ALIGN(block->length, EXCHANGE_ALIGN);
	unsigned char *to;
	uint64_t time;

	if (buffer->port >= EXCHANGE_PORTS || block->length != rte_pktmbuf_pkt_len(buffer))
		return true;
	to = room(length);
	if (!to)
		return false;
	time = clock_of_stamp((uint64_t)block->time_high << 32 | block->time_low, now);
	state.newest = RTE_MAX(state.newest, time);
	block->interface = buffer->port;
	block->time_high = time >> 32;
	block->time_low = time;
	copy_chain(to, buffer);
	state.head += length;
	state.exchange->ports[buffer->port].handed_over++;
	return true;
}

/* Hands over a burst of blocks. Returns their number. */
static unsigned int hand_over_burst(void)
{
	struct rte_mbuf *buffers[BURST];
	uint64_t now = rte_rdtsc();
	unsigned int count = rte_ring_dequeue_burst(state.pool.ring, (void **)buffers, BURST, NULL);
	uint64_t horizon;

	if (count == 0) {
		horizon = clock_wall(now);
	} else {
		now = rte_rdtsc();
		for (unsigned int i = 0; i < count; i++) {
			if (i + 4 < count)
				rte_prefetch0(rte_pktmbuf_mtod(buffers[i + 4], void *));
			if (!hand_over(buffers[i], now))
				break;
		}
		rte_pktmbuf_free_bulk(buffers, count);
		horizon = state.newest;
		store(&state.exchange->head, state.head);
	}
	/* The horizon is stored after the head, so that a reader that has read up to the head has all earlier
	 * packets. */
	if (horizon > LAG_NS)
		store(&state.exchange->horizon, horizon - LAG_NS);
	return count;
}

static void publish_counts(void)
{
	struct rte_pdump_stats sums[EXCHANGE_PORTS] = { 0 };

	places_count(sums);
	for (unsigned int i = 0; i < state.port_count; i++) {
		struct exchange_port *port = &state.exchange->ports[state.ports[i]];
		const struct rte_pdump_stats *sum = &sums[state.ports[i]];

		store(&port->accepted, sum->accepted);
		store(&port->filtered, sum->filtered);
		store(&port->no_buffer, sum->nombuf);
		store(&port->ring_full, sum->ringfull);
	}
}

static bool is_over(void)
{
	return terminated || load(&state.exchange->command) == COMMAND_STOP || trawl_is_gone();
}

static void record(void)
{
	uint64_t checked = 0, busy = 0;
	/* Counts and the primary are checked whenever the clock is read. */
	const uint64_t interval = rte_get_tsc_hz() / (1000000000ull / CLOCK_INTERVAL_NS);

	while (!is_over() && !state.primary_ended) {
		uint64_t now = rte_rdtsc();

		if (now - checked >= interval) {
			checked = now;
			clock_calibrate();
			publish_counts();
			state.primary_ended = !rte_eal_primary_proc_alive(state.config);
		}
		if (hand_over_burst() > 0)
			busy = now;
		else
			usleep(now - busy < interval ? PAUSE_US : LONG_PAUSE_US);
	}
}

static void wait_for_go(void)
{
	while (load(&state.exchange->command) == COMMAND_WAIT) {
		if (trawl_is_gone() || terminated) {
			give_up();
			_exit(1);
		}
		usleep(PAUSE_US);
	}
}

static void enable_ports(void)
{
	struct exchange *exchange = state.exchange;
	struct places_request request = {
		.pool = &state.pool,
		.filter = state.filter,
		.snaplen = exchange->snaplen,
		.directions = exchange->directions,
		.queue = exchange->queue,
		.give_up = give_up,
	};

	for (unsigned int i = 0; i < state.port_count; i++)
		places_enable(&request, state.ports[i]);
}

bool capture(struct exchange *exchange, const char *directory, const char *ports)
{
	state.exchange = exchange;
	state.ring = (unsigned char *)exchange + EXCHANGE_HEADER;
	state.parent = getppid();
	snprintf(state.config, sizeof(state.config), "%s/config", directory);
	signal(SIGTERM, on_termination);
	choose_ports(ports);
	places_begin(directory);
	convert_filter();
	places_clear_dead(directory);
	if (!owner_begin(directory))
		fail("owner\t%s\t%s", directory, strerror(errno));
	if (!pool_make(&state.pool, longest_packet())) {
		owner_end();
		fail("memory\t%s", rte_strerror(failure()));
	}
	clock_begin();
	say("ready");
	wait_for_go();
	enable_ports();
	say("started");
	record();
	if (!state.primary_ended) {
		places_disable();
		/* Callbacks that are still running may put more blocks into the ring. */
		usleep(PLACES_CALLBACK_US);
	}
	while (hand_over_burst() > 0)
		;
	publish_counts();
	if (state.primary_ended)
		say("ended\tprimary");
	else if (terminated)
		say("ended\tterminated");
	store(&exchange->done, 1);
	/* Freeing memory may never end, because a killed primary may have left circular lists. */
	alarm(MAX_FREEING_S);
	if (!state.primary_ended)
		pool_free(&state.pool);
	rte_free(state.filter);
	return !state.primary_ended;
}
