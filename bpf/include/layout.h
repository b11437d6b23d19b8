/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the BPF side and user space share, written once: Rust's copy is generated from this header at build time.
 *
 * The memory for records is one pool, cut into segments that all CPUs draw from. A CPU fills one segment at a time with
 * finished pcapng blocks; a block never crosses a segment's end. The chain of segments that a CPU has filled and not
 * been given back yet is its ring: one producer (the tap programs, which run there with bottom halves off and so never
 * interrupt each other) and one consumer (the reader in user space).
 *
 * Only a change of segment touches what CPUs share: the stack of free segments. The one that is taken next is the one
 * emptied last, which is still in the cache. So a pool of any size runs at the speed of a small one as long as the
 * reader keeps up, and all of it is there for whichever CPU is busy when the reader stalls. A CPU that has seen nothing
 * holds no segment.
 */
#ifndef TRAWL_LAYOUT_H
#define TRAWL_LAYOUT_H

#define POOL_MAX_SEGMENTS 8192
#define RING_MAX_POINTS 2048
/* A CPU's control block, with room to keep those of two CPUs on different pages. */
#define RING_CONTROL_SIZE 139264
/* Room after the last segment of a bank, so that the verifier can prove that any bounded offset plus the largest block
 * fits. Whole pages. */
#define POOL_SLACK (288 * 1024)
/* At the end of a segment, for a block that fills it up to what a disk takes. */
#define SEGMENT_RESERVE 64
/* No segment. */
#define SEGMENT_NONE 0xffffffff
/* The largest number of captured bytes; tcpdump's own limit. */
#define RECORD_MAX_CAPTURED 262144
/* Everything in a block that is not packet bytes, at most. */
#define RECORD_OVERHEAD 384

/* The accounts of one hook point on one CPU. Each packet adds one to just one of the first five, or to `rejections`:
 * what was seen is the sum of these. */
struct point_counters {
	/* By --sample; other conditions count in `rejections`. */
	__u64 filtered_out;
	__u64 recorded;
	__u64 lost_ring_full;
	__u64 lost_copy_failed;
	__u64 lost_rate_limit;
	/* Losses since the last record: what its drop count will tell. */
	__u64 losses_unreported;
	/* Of the recorded ones: stamped by the hardware, and cut by the snap length. */
	__u64 hardware_stamped;
	__u64 truncated;
};

/* What is known of a segment that a CPU has filled: how many bytes, and the segment that it went on with. */
struct closed_segment {
	__u32 used;
	__u32 next;
};

struct ring_control {
	/* Written by the producer for every record: the open segment's ordinal in the upper half, the bytes finished
	 * in it in the lower; bit 0 is set while a record is being written. Ordinal 0 stands for no segment at all, and
	 * is full from the beginning. */
	__u64 position;
	/* The time stamp of the last finished record. */
	__u64 last_time;
	/* The last identifier given to a packet: counted up from one that no other CPU reaches. */
	__u64 last_packet_id;
	/* The open segment, the bank that it lies in, and where in that it begins. */
	__u32 open_segment;
	__u32 open_bank;
	__u32 open_base;
	/* Records since the end of the last poll, where the clock is not read for each: as long as there are any, the
	 * next one may be stamped earlier than now. */
	__u32 since_poll;
	/* Added to the clock the programs read so that a record's time is the wall clock's. Kept up by the reader. */
	__u64 clock_offset;
	/* Non-zero before the capture begins and once it is over: the programs then neither count nor record. */
	__u64 stopped;
	/* Packets that passed the filter, for sampling one in N. */
	__u64 matched;

	/* When the clock was read last, in its own time and in the kernel's ticks, and the longest time between two
	 * readings with records in between: how wrong a stamp can be. */
	__u64 read_time;
	__u64 read_tick;
	__u64 largest_gap;
	/* The first segment that was opened. */
	__u32 first_segment;
	/* Which bits the number of a record in its poll has not if the clock is read for it, where that follows the traffic. */
	__u32 reading_mask;
	__u64 padding1[4];

	/* Written by the producer where a packet is seen at several points in turn, at the first of them: its identifier,
	 * or PACKET_… for why it is not wanted at the others either. */
	__u64 current_packet;
	/* Of a first point's record that is kept back until the verdict is known: HELD_…, its length, where it lies, its
	 * time, the losses that it tells, and whether its bytes were cut. */
	__u32 held;
	__u32 held_size;
	__u64 held_position;
	__u64 held_time;
	__u64 held_unreported;
	__u64 held_truncated;
	/* Always zero: the key of a map that has one entry. */
	__u64 zero;
	__u64 padding2;

	struct point_counters points[RING_MAX_POINTS];
};

/* What the CPUs share of the pool. */
struct pool_state {
	/* The segment on top of the stack of free ones in the lower half, or SEGMENT_NONE; how often the stack has changed
	 * in the upper. */
	__u64 free;
	/* How many segments are not on it. */
	__u64 in_use;
	__u64 padding[6];
	struct closed_segment closed[POOL_MAX_SEGMENTS];
	/* Of a free segment: the one below it on the stack. */
	__u32 below[POOL_MAX_SEGMENTS];
};

#define REJECTIONS_BEFORE 192
#define REJECTIONS_BEHIND 320

/* Packets that the filter and its like did not let through, on one CPU, by hook point. Apart from the rings, in a map
 * whose address stands in the instructions: most packets may come to nothing but this, and should not have to look up
 * a ring for it. Whole pages for each CPU, and the numbers where drivers seldom have anything of a packet: its own lines lie
 * at the same places of ever new pages, mostly the beginning, and push what lies there in other pages out of the cache. */
struct rejections {
	__u64 before[REJECTIONS_BEFORE];
	__u64 points[RING_MAX_POINTS];
	__u64 behind[REJECTIONS_BEHIND];
};

/* One for the whole capture, shared by all CPUs. */
struct capture_shared {
	/* Tickets handed out when the number of records is limited (-c). */
	__u64 tickets;
	/* When the next record is due under --limit-rate, in 1/64 ns of the steady clock. */
	__u64 rate_due;
	/* Packets seen on a CPU that has no ring: it came up after the capture began. */
	__u64 no_ring[RING_MAX_POINTS];
};

/* What a program's record at one hook point looks like, as far as it is the same for all packets. */
struct record_config {
	/* Where the account stands in the control block, and which one it is. */
	__u32 account_offset;
	__u32 point;
	/* Where its rejections stand in those of a CPU. */
	__u32 rejected_offset;
	/* The interface block; another one if the time is the hardware's. */
	__u32 interface;
	__u32 hardware_interface;
	__u32 direction;
	/* The verdict as the file holds it: kind and value packed, or a kind of none. */
	__u32 verdict_kind;
	__u32 verdict_low;
	__u32 verdict_middle;
	__u32 verdict_high;
	/* The length of the options that each record has, and of all that is not the packet's bytes in such a record. The
	 * loader works them out of the rest. */
	__u32 options_length;
	__u32 fixed_length;
};

/* What one tap program is told. Programs name these fields with CONFIG(), and the loader writes the values into the
 * instructions: a constant costs nothing, and the verifier removes what it makes unreachable. */
struct tap_config {
	/* The record that is made; the second one is for programs that record a packet at entry and at exit. */
	struct record_config first;
	struct record_config second;
	/* -c; 0 for no limit. */
	__u32 record_limit_low;
	__u32 record_limit_high;
	__u32 snaplen;
	/* A segment, and how much of it takes records. */
	__u32 segment_size;
	__u32 segment_room;
	/* A bank's size less one, and the exponent of the number of segments in one. */
	__u32 bank_mask;
	__u32 bank_shift;
	/* How many records the clock is read for after the end of a poll, and then for which ones: those whose number
	 * has none of these bits. 0 readings: for each record. `clock_follows`: for more where packets come slowly, so that
	 * the time between readings is CLOCK_GAP at most. */
	__u32 clock_first;
	__u32 clock_mask;
	__u32 clock_follows;
	/* What is written of each packet beside its bytes: 1 or 0. */
	__u32 write_flags;
	__u32 write_queue;
	__u32 write_id;
	__u32 write_comment;
	/* The number of CPUs there can be, rounded up to a power of two, less one. */
	__u32 cpu_mask;
	/* What this program returns. */
	__u32 verdict;
	/* The verdict is not among those asked for: count the packet as filtered out. */
	__u32 unwanted;
	/* Only packets that came in by this interface are meant; 0 for all. */
	__u32 only_ifindex;
	/* Only packets of this queue, and on this CPU; ALL for any. */
	__u32 only_queue;
	__u32 only_cpu;
	/* What the kernel adds to the queue that it notes on a packet: 1 on received ones, mostly. */
	__u32 queue_offset;
	/* --sample-every: one packet in N; 0 for all. */
	__u32 sample;
	/* --sample: a packet whose random number is below this; 0 for all. */
	__u32 sample_below;
	/* --limit-rate: the time between records and how far they may run ahead of it, in 1/64 ns; 0 for no limit. */
	__u32 rate_interval_low;
	__u32 rate_interval_high;
	__u32 rate_tolerance_low;
	__u32 rate_tolerance_high;
	/* The place of the next program in the chain of captures on this hook; ALL if none can be there. */
	__u32 chain_next;
	/* 1: bpf_ktime_get_tai_ns, 0: bpf_ktime_get_ns. */
	__u32 clock_is_tai;
	/* The slot of the program that runs when all captures here have looked; ALL if there is none. */
	__u32 onward;
	/* Keep the record back until the verdict is known, or publish what was kept back: HOLD_…; `second` is then the
	 * other point. */
	__u32 hold;
	/* Decide on the packet for the points that follow, without a record here. */
	__u32 silent;
	/* For programs that run after others, wherever those do: only packets in this network namespace; 0 for all. */
	__u32 only_namespace;
	/* The verdicts that are recorded, a bit for each. */
	__u32 wanted_verdicts;
	/* The packet has got its identifier from the program that saw it first. */
	__u32 shared_id;
	/* Where the kernel's view of all memory begins, and the list of its pages. */
	__u32 first_address_low;
	__u32 first_address_high;
	__u32 first_page_low;
	__u32 first_page_high;
	/* For the tap at drops: the tracepoint names the socket that was to receive the packet (6.11 on), and the
	 * functions that led to the drop are recorded. */
	__u32 names_receiver;
	__u32 with_stack;
	/* For programs that follow packets: with more segments in use, no more packets are followed. The rest is for the
	 * steps of those that are. */
	__u32 segments_for_entries;
	/* Packets that other programs of the capture have seen: LINKS_… of drop.h; and how far into the kernel's own
	 * structure of the packet the address of its memory lies. */
	__u32 links;
	__u32 head_offset;
	/* How far into that structure the flags of an XDP packet lie; 0: they cannot be read. */
	__u32 flags_offset;
	/* Where packets are followed: which step this program stands at, STEP_… of drop.h. */
	__u32 step;
	/* The pool is a list of maps, one for each bank, to which some are added while the capture runs. */
	__u32 grows;
	/* Interfaces are told apart by their namespace too; and how far into the kernel's own structures lie: what XDP knows
	 * of a queue (0: there is none on the way), the device, its namespace, and the number of that. */
	__u32 by_namespace;
	__u32 queue_info_offset;
	__u32 device_offset;
	__u32 device_namespace_offset;
	__u32 namespace_number_offset;
};

/* An interface that a program for many of them sees packets on. */
struct interface_key {
	__u32 ifindex;
	/* The number of its namespace, if interfaces are told apart by that. */
	__u32 namespace;
};

/* Where its packets count, and the interface block that they belong to. The second record of a program has the next
 * account and the next block. */
struct interface_place {
	__u32 point;
	__u32 interface;
};

/* What there is to know of the kernel's own memory, to find a fragment's bytes. */
struct kernel_addresses {
	__u64 first_address;
	__u64 first_page;
};

/* Not an identifier: no packet was seen at the first point yet, the filter rejected it, --limit-rate did. */
#define PACKET_NONE 0
#define PACKET_UNWANTED 0xfffffffffffffffe
#define PACKET_RATE_LIMITED 0xffffffffffffffff

/* What a program does with a first point's record where the verdict decides about it. */
#define HOLD_NOTHING 0
#define HOLD_AT_ENTRY 1
#define HOLD_UNTIL_EXIT 2
/* What became of that record: there is none, it waits, it found no room, its bytes could not be copied. */
#define HELD_NONE 0
#define HELD_WAITS 1
#define HELD_NO_ROOM 2
#define HELD_NOT_COPIED 3

#define CHAIN_SLOTS 8
/* The map that a tappable program jumps through before it begins: those who look, and the program itself for them to
 * jump on to. */
#define ENTRY_SLOT_CAPTURE 0
#define ENTRY_SLOT_BODY 1
#define ENTRY_SLOTS 2
#define ALL 0xffffffff
/* The longest time between two readings of the clock that is aimed for, in nanoseconds. */
#define CLOCK_GAP 2000

/* The lengths of a record's parts: what comes before and after its bytes and options, and the options. A count is that of
 * losses or a packet's identifier. A verdict is one byte of kind, eight of value, three of padding. */
#define RECORD_FRAME_LENGTH 32
#define FLAGS_LENGTH 8
#define QUEUE_LENGTH 8
#define COUNT_LENGTH 12
#define VERDICT_LENGTH 16
#define END_OF_OPTIONS_LENGTH 4

#define VERDICT_NONE 0
#define VERDICT_TC 1
#define VERDICT_XDP 2
/* In the configuration only: the verdict of an XDP program, as it is seen. */
#define VERDICT_XDP_SEEN 3

/* How much of a packet a filter at a tracing program gets to see, and the room for it and for words about the packet,
 * on each CPU. */
#define TRACE_COPY 2048
#define TRACE_SCRATCH_SIZE 4352

_Static_assert(sizeof(struct ring_control) <= RING_CONTROL_SIZE, "the control block fits in front of the bytes");
_Static_assert(sizeof(struct rejections) == 5 * 4096, "the rejections of a CPU fill whole pages");
_Static_assert(sizeof(struct point_counters) == 64, "an account fills one cache line");
_Static_assert(__builtin_offsetof(struct ring_control, current_packet) % 64 == 0,
	       "what is known of the packet under way is on a line of its own");

#endif
