// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The receiver of `trawl gen receive`: recognises stamped packets and counts, for each flow, lost, reordered and
 * duplicate packets, and latencies. All counts are exact, whichever CPUs receive the packets. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/one_buffer.h"
#include "include/receive_layout.h"
#include "gen/stamp.h"

char LICENSE[] SEC("license") = "GPL";

#define TIME_MASK ((1ull << STAMP_TIME_BITS) - 1)
/* A lower sequence number with a stamp this much later means that the sender restarted, and not that other packets
 * overtook the packet, because a sending thread is hardly ever delayed this long between stamp and sequence number. */
#define RESTART_NS 10000000
/* Sequence numbers without their lowest six bits fit in this many bits. */
#define BLOCK_BITS 48
/* Length of the largest possible packet. */
#define LONGEST 0x3ffff
/* The verifier accepts no larger offsets to packet pointers. */
#define LARGEST_OFFSET 0xefff

/* The loader sets this configuration. */
const volatile struct receive_config config = {};

struct entry {
	struct bpf_spin_lock lock;
	__u32 padding;
	struct receive_flow flow;
};

_Static_assert(sizeof(struct entry) == sizeof(struct receive_entry), "user space reads what is written here");
_Static_assert(__builtin_offsetof(struct entry, flow) == __builtin_offsetof(struct receive_entry, flow),
	       "the lock is as long as it is said to be");

/* The key has the stream in its upper half and the flow in its lower half. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entry);
} flows SEC(".maps");

/* Initial value of a flow, never written. Its type has no bpf_spin_lock, because helpers may not read one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct receive_entry);
} blank SEC(".maps");

/* One entry for each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct receive_totals);
} totals SEC(".maps");

/* Returns the position of the highest bit, or 0 for 0. */
static __always_inline __u32 log2_of(__u64 value)
{
	__u32 result = 0;

	if (value >> 32) {
		value >>= 32;
		result += 32;
	}
	if (value >> 16) {
		value >>= 16;
		result += 16;
	}
	if (value >> 8) {
		value >>= 8;
		result += 8;
	}
	if (value >> 4) {
		value >>= 4;
		result += 4;
	}
	if (value >> 2) {
		value >>= 2;
		result += 2;
	}
	return result + (value >> 1);
}

static __always_inline __u32 bucket_of(__u64 value, __u32 bits, __u32 buckets)
{
	__u32 highest = log2_of(value);
	__u32 shift = highest > bits ? highest - bits : 0;
	__u64 bucket = ((__u64)shift << bits) + (value >> shift);

	return bucket < buckets ? bucket : buckets - 1;
}

/* Adds a latency, which is a signed difference of 48 bits. Returns the value for the buckets, or 0 if it is
 * negative. */
static __always_inline __u64 add_latency(struct receive_latency *latency, __s64 elapsed)
{
	__u64 value = elapsed;

	if (elapsed < 0) {
		if (-elapsed > (__s64)latency->most_negative)
			latency->most_negative = -elapsed;
		latency->negative++;
		value = 0;
	}
	if (latency->count == 0 || value < latency->least)
		latency->least = value;
	if (value > latency->most)
		latency->most = value;
	latency->count++;
	latency->sum += value;
	return value;
}

static __always_inline __s64 time_between(__u64 earlier, __u64 later)
{
	return (__s64)((later - earlier) << (64 - STAMP_TIME_BITS)) >> (64 - STAMP_TIME_BITS);
}

/* Marks a packet of the window, or a newer one, as received. Returns false if it was received before. */
static __always_inline bool mark(struct receive_flow *flow, __u64 sequence)
{
	struct receive_word *word = &flow->window[(sequence >> 6) % RECEIVE_WINDOW_WORDS];
	__u64 block = sequence >> 6 | flow->restarts << BLOCK_BITS;
	__u64 bit = 1ull << (sequence & 63);

	if (word->block != block) {
		word->block = block;
		word->came = bit;
		return true;
	}
	if (word->came & bit)
		return false;
	word->came |= bit;
	return true;
}

static __always_inline void begin(struct receive_flow *flow, __u64 sequence, __u64 time)
{
	flow->first = sequence;
	flow->highest = sequence;
	flow->highest_time = time;
	flow->distinct = 1;
	mark(flow, sequence);
}

/* Counts a packet of a flow, whose lock the caller holds. Returns false for a duplicate, and for a packet older than
 * the window. */
static __always_inline bool follow(struct receive_flow *flow, const struct stamp *stamp, __u32 length)
{
	__s64 ahead = (__s32)(stamp->sequence - (__u32)flow->highest);
	__u64 sequence = flow->highest + ahead;
	__u64 span;

	flow->bytes += length;
	if (flow->received++ == 0) {
		begin(flow, RECEIVE_FIRST_ERA + stamp->sequence, stamp->time);
		return true;
	}
	if (ahead > 0) {
		mark(flow, sequence);
		flow->highest = sequence;
		flow->highest_time = stamp->time;
		flow->distinct++;
		return true;
	}
	if (time_between(flow->highest_time, stamp->time) > RESTART_NS) {
		span = flow->highest - flow->first + 1;
		flow->expected_before += span;
		flow->lost_before += span - flow->distinct;
		flow->restarts++;
		begin(flow, RECEIVE_FIRST_ERA + stamp->sequence, stamp->time);
		return true;
	}
	if (ahead <= -RECEIVE_WINDOW) {
		flow->too_old++;
		return false;
	}
	if (!mark(flow, sequence)) {
		flow->duplicates++;
		return false;
	}
	flow->reordered++;
	flow->distinct++;
	if (sequence < flow->first)
		flow->first = sequence;
	return true;
}

static __always_inline struct entry *flow_of(const struct stamp *stamp)
{
	__u32 key = stamp->stream << 16 | stamp->flow;
	struct entry *entry = bpf_map_lookup_elem(&flows, &key);
	const struct receive_entry *fresh;
	__u32 zero = 0;

	if (entry)
		return entry;
	fresh = bpf_map_lookup_elem(&blank, &zero);
	if (!fresh)
		return NULL;
	/* If another CPU is first, the update changes nothing, and the look-up finds that CPU's entry. */
	bpf_map_update_elem(&flows, &key, fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, &key);
}

static __always_inline bool find_stamp(struct xdp_md *context, __u32 length, struct stamp *stamp)
{
	const char *data = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u32 offset = length - STAMP_LENGTH;
	char copy[STAMP_LENGTH + 6];

	if (length < STAMP_LENGTH || length > LONGEST)
		return false;
	if (offset <= LARGEST_OFFSET) {
		const char *at = data + offset;

		if (at + STAMP_LENGTH <= end)
			return stamp_read(at, stamp);
	}
	/* The stamp may be in a fragment. */
	if (read_beyond(context, offset, copy, STAMP_LENGTH))
		return false;
	return stamp_read(copy, stamp);
}

static __always_inline __u64 now(void)
{
	if (config.clock_is_tai)
		return bpf_ktime_get_tai_ns();
	return bpf_ktime_get_ns() + config.clock_offset;
}

SEC("?xdp.frags")
int gen_receive(struct xdp_md *context)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u32 length = frame_length(context);
	struct receive_totals *total = bpf_map_lookup_elem(&totals, &cpu);
	struct stamp stamp;
	struct entry *entry;
	__s64 elapsed;
	__u64 time, value;
	bool is_new = true;

	/* The verifier requires this check, which never fails, because each possible CPU has an entry. */
	if (!total)
		return XDP_PASS;
	if (!find_stamp(context, length, &stamp)) {
		total->unstamped++;
		total->unstamped_bytes += length;
		return XDP_PASS;
	}
	time = now();
	elapsed = time_between(stamp.time, time);
	if (total->stamped++ == 0)
		total->first_time = time;
	total->last_time = time;
	total->stamped_bytes += length;
	entry = flow_of(&stamp);
	if (entry) {
		bpf_spin_lock(&entry->lock);
		is_new = follow(&entry->flow, &stamp, length);
		if (is_new) {
			value = add_latency(&entry->flow.latency, elapsed);
			entry->flow.buckets[bucket_of(value, RECEIVE_FLOW_BITS, RECEIVE_FLOW_BUCKETS) %
					    RECEIVE_FLOW_BUCKETS]++;
		}
		bpf_spin_unlock(&entry->lock);
	} else {
		total->untracked++;
	}
	if (is_new) {
		value = add_latency(&total->latency, elapsed);
		total->buckets[bucket_of(value, RECEIVE_TOTAL_BITS, RECEIVE_TOTAL_BUCKETS) % RECEIVE_TOTAL_BUCKETS]++;
	}
	return config.verdict;
}
