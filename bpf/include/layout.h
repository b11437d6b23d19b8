/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The layouts that BPF programs and user space share. Rust's copy is generated from this header at build time.
 *
 * The memory for records is one pool of segments, which all CPUs share. A CPU fills one segment at a time with finished
 * pcapng blocks; a block never crosses a segment's end. The chain of segments that a CPU has filled and the reader has
 * not yet freed is its ring: one producer (the tap programs, which run there with bottom halves off and so never
 * interrupt each other) and one consumer (the reader in user space).
 *
 * CPUs access shared data only when they change segments: the stack of free segments. A producer takes the segment that
 * was emptied last, which is still in the cache. A pool of any size is therefore as fast as a small one while the
 * reader keeps up, and when the reader stalls, all of it is available to any busy CPU. A CPU without traffic holds no
 * segment.
 */
#ifndef TRAWL_LAYOUT_H
#define TRAWL_LAYOUT_H

#define POOL_MAX_SEGMENTS 8192
#define RING_MAX_POINTS 2048
/* Size of a CPU's control block, padded so that no two CPUs share a page. */
#define RING_CONTROL_SIZE 139264
/* Free space after the last segment of a bank, with which the verifier can prove that any bounded offset plus the
 * largest block fits. Whole pages. */
#define POOL_SLACK (288 * 1024)
/* Free space at the end of a segment, for a block that fills it up to a unit of the disk. */
#define SEGMENT_RESERVE 64
/* No segment. */
#define SEGMENT_NONE 0xffffffff
/* Maximum number of captured bytes, which is tcpdump's limit. */
#define RECORD_MAX_CAPTURED 262144
/* Maximum number of bytes in a block besides the packet's own. */
#define RECORD_OVERHEAD 384

/* The reader is awake; it waits for the next record; it waits for a full segment. */
#define RING_SILENT 0
#define RING_FOR_RECORD 1
#define RING_FOR_SEGMENT 2

/* The account of one hook point on one CPU. Each packet adds one to exactly one of the first five counters, or to
 * `rejections`: the number of packets seen is their sum. */
struct point_counters {
	/* Packets left out by --sample; other conditions count in `rejections`. */
	__u64 filtered_out;
	__u64 recorded;
	__u64 lost_ring_full;
	__u64 lost_copy_failed;
	__u64 lost_rate_limit;
	/* Losses since the last record, for the next record's drop count. */
	__u64 losses_unreported;
	/* Recorded packets with a hardware time stamp, and recorded packets cut by the snap length. */
	__u64 hardware_stamped;
	__u64 truncated;
};

/* A segment that a CPU has filled: its used bytes, and the CPU's next segment. */
struct closed_segment {
	__u32 used;
	__u32 next;
};

struct ring_control {
	/* Written by the producer for every record: the open segment's ordinal in the upper half, the number of
	 * finished bytes in it in the lower; bit 0 is set while a record is being written. Ordinal 0 means no segment,
	 * and is full from the beginning. */
	__u64 position;
	/* The time stamp of the last finished record. */
	__u64 last_time;
	/* The last identifier given to a packet. CPUs count up from start values so far apart that no identifier
	 * repeats. */
	__u64 last_packet_id;
	/* The open segment, its bank, and its offset in the bank. */
	__u32 open_segment;
	__u32 open_bank;
	__u32 open_base;
	/* Records since the end of the last poll, if the clock is not read for each. While this is not zero, the next
	 * record may get a stamp earlier than now. */
	__u32 since_poll;
	/* Added to the clock that the programs read to get wall-clock time. The reader keeps it up to date. */
	__u64 clock_offset;
	/* Non-zero before the capture begins and after it ends: the programs then neither count nor record. */
	__u64 stopped;
	/* What rings the reader's doorbell, which sets this to RING_SILENT: RING_FOR_…. */
	__u64 bell;

	/* The last reading of the clock, in its own time and in the kernel's ticks, and the longest time between two
	 * readings with records in between: the maximum error of a stamp. */
	__u64 read_time;
	__u64 read_tick;
	__u64 largest_gap;
	/* The first segment that this CPU opened. */
	__u32 first_segment;
	/* With `clock_follows`: the clock is read for records whose number in their poll has none of these bits. */
	__u32 reading_mask;
	/* With `headers`: the offset reached in the packet, and in the upper half what begins there. */
	__u64 headers;
	/* Packets that passed the filter, for --sample-every. */
	__u64 matched;
	__u64 padding1[2];

	/* Written by the producer at the first of several points that see a packet in turn: its identifier, or PACKET_…
	 * if the other points do not want it either. */
	__u64 current_packet;
	/* The first point's record while it waits for the verdict: HELD_…, its length, its position, its time, its drop
	 * count, and whether its bytes were cut. */
	__u32 held;
	__u32 held_size;
	__u64 held_position;
	__u64 held_time;
	__u64 held_unreported;
	__u64 held_truncated;
	/* Always zero: the key of maps with one entry. */
	__u64 zero;
	__u64 padding2;

	struct point_counters points[RING_MAX_POINTS];
};

/* The state of the pool that CPUs share. */
struct pool_state {
	/* The stack of free segments: its top in the lower half, or SEGMENT_NONE; the number of changes in the
	 * upper. */
	__u64 free;
	/* Number of segments that are not on the stack. */
	__u64 in_use;
	/* Number of segments. A pool that grows has more later. */
	__u64 segments;
	/* Non-zero: programs take segments under a lock (`locks` in struct tap_config), and the stack is a queue instead:
	 * `free` counts the segments that user space has added, and `below` holds their numbers plus one in this order.
	 * Zero is an empty place. */
	__u64 is_queue;
	/* Number of segments in use at which a program asks for more. The program then sets this to 0. */
	__u64 grow_at;
	/* Number of banks that were removed so far. */
	__u64 removals;
	__u64 padding[2];
	struct closed_segment closed[POOL_MAX_SEGMENTS];
	/* For each free segment: the one below it on the stack. */
	__u32 below[POOL_MAX_SEGMENTS];
};

/* The lock of the programs of a capture. */
struct capture_lock {
	/* The kernel's struct bpf_spin_lock. */
	__u32 lock;
	/* Number of segments that were taken from the queue. */
	__u32 taken;
};

#define REJECTIONS_BEFORE 192
#define REJECTIONS_BEHIND 320

/* Packets rejected by the filter, the queue, the CPU or the verdict, on one CPU, by hook point. They are not in the rings,
 * but in a map whose address is a constant in the instructions: most packets may end here, and need no look-up of a ring.
 * Each CPU has whole pages. Drivers put packets at the same few offsets of ever new pages, mostly at the beginning, and so
 * evict other data at these offsets from the cache: the counts are at other offsets. */
struct rejections {
	__u64 before[REJECTIONS_BEFORE];
	__u64 points[RING_MAX_POINTS];
	__u64 behind[REJECTIONS_BEHIND];
};

/* State of the whole capture, shared by all CPUs. */
struct capture_shared {
	/* Tickets handed out if the number of records is limited (-c). */
	__u64 tickets;
	/* Due time of the next record under --limit-rate, in 1/64 ns of the monotonic clock. */
	__u64 rate_due;
	/* Packets seen on a CPU without a ring, because it came up after the capture began. */
	__u64 no_ring[RING_MAX_POINTS];
};

/* The properties that all records of a program at one hook point share. */
struct record_config {
	/* Offset of the account in the control block, and its number. */
	__u32 account_offset;
	__u32 point;
	/* Offset of its rejections in struct rejections. */
	__u32 rejected_offset;
	/* The interface block, and the one for records with a hardware time stamp. */
	__u32 interface;
	__u32 hardware_interface;
	__u32 direction;
	/* The verdict as in the file: packed kind and value; kind VERDICT_NONE for no verdict. */
	__u32 verdict_kind;
	__u32 verdict_low;
	__u32 verdict_middle;
	__u32 verdict_high;
	/* Length of the options of every record, and length of such a record without the packet's bytes. The loader
	 * computes them from the other fields. */
	__u32 options_length;
	__u32 fixed_length;
};

/* The configuration of one tap program. Programs name these fields with CONFIG(), and the loader writes the values into
 * the instructions: a constant costs nothing, and the verifier removes code that it makes unreachable. */
struct tap_config {
	/* The record; `second` is for programs that record a packet at entry and at exit. */
	struct record_config first;
	struct record_config second;
	/* -c; 0 for no limit. */
	__u32 record_limit_low;
	__u32 record_limit_high;
	__u32 snaplen;
	/* HEADERS_…: packets are cut after their headers, which begin with this. */
	__u32 headers;
	/* Size of a segment, and the part of it that records can fill. */
	__u32 segment_size;
	__u32 segment_room;
	/* A bank's size minus one, and the base-2 logarithm of the number of segments in it. */
	__u32 bank_mask;
	__u32 bank_shift;
	/* Number of records after the end of a poll for which the clock is read; it is then read for records whose
	 * number has none of the bits of the mask. `clock_first` 0: for each record. `clock_follows`: for more records
	 * if packets are rare, so that the time between readings is at most CLOCK_GAP. */
	__u32 clock_first;
	__u32 clock_mask;
	__u32 clock_follows;
	/* Items written for each packet besides its bytes: 1 or 0. */
	__u32 write_flags;
	__u32 write_queue;
	__u32 write_id;
	__u32 write_comment;
	/* Non-zero: the number of segments of a GSO packet is written. */
	__u32 write_segments;
	/* Non-zero: only packets of some processes are wanted. */
	__u32 only_processes;
	/* What is written of its socket with the process of a packet: WRITE_…. */
	__u32 write_socket;
	/* Offsets in the kernel's structures of a socket and of a task. */
	__u32 socket_cookie_offset;
	__u32 socket_listener_offset;
	__u32 socket_state_offset;
	/* Zero if the kernel has no such member. */
	__u32 socket_group_offset;
	__u32 group_program_offset;
	__u32 task_flags_offset;
	__u32 task_process_offset;
	__u32 task_thread_offset;
	__u32 task_files_offset;
	__u32 files_table_offset;
	__u32 table_length_offset;
	__u32 table_list_offset;
	__u32 sock_socket_offset;
	__u32 socket_file_offset;
	/* Maximum number of CPUs, rounded up to a power of two, minus one. */
	__u32 cpu_mask;
	/* Number of the first ring for programs that interrupt another one on the same CPU; 0: these count their packet as
	 * lost. */
	__u32 nested_from;
	/* Return value of this program. */
	__u32 verdict;
	/* Non-zero if the verdict is not requested: packets count as filtered out. */
	__u32 unwanted;
	/* Only packets that arrived on this interface; 0 for all. */
	__u32 only_ifindex;
	/* Only packets of this queue and on this CPU; ALL for any. */
	__u32 only_queue;
	__u32 only_cpu;
	/* Number that the kernel adds to the queue that it stores with a packet: usually 1 for received packets. */
	__u32 queue_offset;
	/* --sample-every: one packet in N; 0 for all. */
	__u32 sample;
	/* --sample: packets whose random number is below this; 0 for all. */
	__u32 sample_below;
	/* --limit-rate: the time between records, and the time by which records may be early, in 1/64 ns; 0 for no
	 * limit. */
	__u32 rate_interval_low;
	__u32 rate_interval_high;
	__u32 rate_tolerance_low;
	__u32 rate_tolerance_high;
	/* Slot of the next program in the chain of captures on this hook; ALL if none can follow. */
	__u32 chain_next;
	/* 1: bpf_ktime_get_tai_ns, 0: bpf_ktime_get_ns. */
	__u32 clock_is_tai;
	/* Slot of the program that runs after all captures on this hook; ALL if there is none. */
	__u32 onward;
	/* Hold the record back until the verdict is known, or publish a held record: HOLD_…; `second` is then the other
	 * point. */
	__u32 hold;
	/* Non-zero: decide about the packet for the points that follow, without a record at this one. */
	__u32 silent;
	/* Only packets in this network namespace, for programs that run for several interfaces; 0 for all. */
	__u32 only_namespace;
	/* Verdicts that are recorded, a bit for each. */
	__u32 wanted_verdicts;
	/* Non-zero: the program that saw the packet first has given it its identifier. */
	__u32 shared_id;
	/* Start addresses of the kernel's direct mapping of memory and of its array of struct page. */
	__u32 first_address_low;
	__u32 first_address_high;
	__u32 first_page_low;
	__u32 first_page_high;
	/* For the tap at drops: the tracepoint names the socket that was to receive the packet (6.11 on); the functions
	 * that led to the drop are recorded, and the object that dropped the packet. */
	__u32 names_receiver;
	__u32 with_stack;
	__u32 names_dropper;
	/* For the counter of drops: lost segments of measured sockets are noted. */
	__u32 notes_segments;
	/* Only the first of a list of socket buffers is read: the typed loads of a lockdown are many instructions. */
	__u32 first_buffer_only;
	/* Treatment of packets that other programs of the capture have seen: LINKS_… of drop.h; and the offset of the
	 * address of the packet's memory in the kernel's own structure. */
	__u32 links;
	__u32 head_offset;
	/* Offsets of a socket buffer's other addresses, for programs that see packets without their Ethernet header; 0: the
	 * kernel always leaves it. */
	__u32 data_offset;
	__u32 mac_header_offset;
	/* Offset of an XDP packet's flags in that structure; 0: they cannot be read. */
	__u32 flags_offset;
	/* For programs that follow packets: this program's step, STEP_… of drop.h. */
	__u32 step;
	/* Number of the hook, from 1, at which two programs follow packets; 0 where one is enough. */
	__u32 hook;
	/* Non-zero for the second of the two: it takes the packets that the first one missed. */
	__u32 is_second;
	/* For the counter of verdicts: the ID of the traced program. */
	__u32 traced_program;
	/* Non-zero: the pool is an array of maps, one for each bank, which gets more maps while the capture runs. */
	__u32 grows;
	/* Non-zero: BPF has no atomic operations that return a value (before Linux 5.12). Programs then change shared
	 * values under a lock. */
	__u32 locks;
	/* Non-zero: all XDP packets are in one buffer, and the helpers for several buffers are missing (before Linux
	 * 5.18). */
	__u32 one_buffer;
	/* Non-zero: interfaces are identified by their namespace too. The offsets in the kernel's own structures are
	 * those of the queue's XDP information (0: the path has none), the device, its namespace, and the namespace's
	 * number. */
	__u32 by_namespace;
	__u32 queue_info_offset;
	__u32 device_offset;
	__u32 device_namespace_offset;
	__u32 namespace_number_offset;
};

/* An interface on which a program for many interfaces sees packets. */
struct interface_key {
	__u32 ifindex;
	/* The number of its namespace, if namespaces identify interfaces; else 0. */
	__u32 namespace;
};

/* The point at which an interface's packets count, and their interface block. The second record of a program has the
 * next point and the next block. */
struct interface_place {
	__u32 point;
	__u32 interface;
};

/* Addresses in the kernel's memory from which the address of a fragment's bytes is computed. */
struct kernel_addresses {
	__u64 first_address;
	__u64 first_page;
};

/* Values that are not identifiers: no packet was seen at the first point yet; the filter or --sample rejected it;
 * --limit-rate did. */
#define PACKET_NONE 0
#define PACKET_UNWANTED 0xfffffffffffffffe
#define PACKET_RATE_LIMITED 0xffffffffffffffff

/* Treatment of a first point's record if the verdict decides about it. */
#define HEADERS_OF_ETHERNET 1
#define HEADERS_OF_IP 2

#define HOLD_NOTHING 0
#define HOLD_AT_ENTRY 1
#define HOLD_UNTIL_EXIT 2
/* State of that record: none, waiting, without room in the ring, bytes not copied. */
#define HELD_NONE 0
#define HELD_WAITS 1
#define HELD_NO_ROOM 2
#define HELD_NOT_COPIED 3

#define CHAIN_SLOTS 8
/* Slots of the map through which a tappable program jumps before it begins: the captures, and the program itself, to
 * which captures jump. */
#define ENTRY_SLOT_CAPTURE 0
#define ENTRY_SLOT_BODY 1
#define ENTRY_SLOTS 2
#define ALL 0xffffffff
/* Target for the longest time between two readings of the clock, in nanoseconds. */
#define CLOCK_GAP 2000

/* Lengths of a record's parts: the fields before and after its bytes and options, and each option. COUNT_LENGTH is for
 * losses and for a packet's identifier. A verdict has one byte of kind, eight of value, three of padding. */
#define RECORD_FRAME_LENGTH 32
#define FLAGS_LENGTH 8
#define QUEUE_LENGTH 8
#define COUNT_LENGTH 12
#define VERDICT_LENGTH 16
#define PROCESS_LENGTH 12
#define SOCKET_LENGTH 24
/* A comment such as segs=00045. */
#define SEGMENTS_LENGTH 16
/* Values of `write_socket` other than 0: the facts of each socket; a comment of this length with its header, if the process only
 * owns the listening socket or has the socket open among others. */
#define WRITE_FACTS 1
#define WRITE_UNCERTAIN 2
#define UNCERTAIN_LENGTH 20
#define END_OF_OPTIONS_LENGTH 4

#define VERDICT_NONE 0
#define VERDICT_TC 1
#define VERDICT_XDP 2
/* In the configuration only: the verdict that the XDP program returns at run time. */
#define VERDICT_XDP_SEEN 3

/* Number of bytes of a packet that a filter at a tracing program can read, and size of the memory on each CPU for them
 * and for the comment. */
#define TRACE_COPY 2048
#define TRACE_SCRATCH_SIZE 4352

_Static_assert(sizeof(struct ring_control) <= RING_CONTROL_SIZE, "the control block fits in front of the bytes");
_Static_assert(sizeof(struct rejections) == 5 * 4096, "the rejections of a CPU fill whole pages");
_Static_assert(sizeof(struct pool_state) % 8 == 0, "the kernel's arrays have values of whole words");
_Static_assert(sizeof(struct point_counters) == 64, "an account fills one cache line");
_Static_assert(__builtin_offsetof(struct ring_control, current_packet) % 64 == 0,
	       "what is known of the packet under way is on a line of its own");

#endif
