// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The head of a chain of XDP programs, by version 2 of libxdp's protocol for dispatchers. Each program of the chain
 * replaces one of the functions below (freplace). Names and layout follow the protocol, so that libxdp's own tools can
 * change a chain that trawl made. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAGIC 236
#define VERSION 2
#define SLOTS 10
/* Return value of an empty slot. The actions of every slot contain it, so that the chain continues there. */
#define STUB_VERDICT 31

struct xdp_dispatcher_config {
	__u8 magic;
	__u8 dispatcher_version;
	__u8 num_progs_enabled;
	__u8 is_xdp_frags;
	__u32 chain_call_actions[SLOTS];
	__u32 run_prios[SLOTS];
	__u32 program_flags[SLOTS];
};

_Static_assert(sizeof(struct xdp_dispatcher_config) == 124, "others read it too");

/* The configuration is constant once loaded, so that the verifier removes the calls of unused slots. It is volatile,
 * because otherwise the compiler would remove all calls. */
static volatile const struct xdp_dispatcher_config conf = {};

/* The verdict is volatile, because the compiler must not assume it: the program that replaces the function may return
 * any verdict. Since Linux 6.12, a program that changes packet data can replace only functions that may do so, too. The
 * call of bpf_xdp_adjust_head() makes this function such a one, and changes nothing. */
#define STUB(number)                                                                                                   \
	__attribute__((noinline)) int prog##number(struct xdp_md *context)                                             \
	{                                                                                                              \
		volatile int verdict = STUB_VERDICT;                                                                   \
                                                                                                                       \
		if (!context)                                                                                          \
			return XDP_ABORTED;                                                                            \
		bpf_xdp_adjust_head(context, 0);                                                               \
		return verdict;                                                                                        \
	}

STUB(0)
STUB(1)
STUB(2)
STUB(3)
STUB(4)
STUB(5)
STUB(6)
STUB(7)
STUB(8)
STUB(9)

#define CALL(number)                                                                                                   \
	do {                                                                                                           \
		if (count <= (number))                                                                                 \
			return XDP_PASS;                                                                               \
		verdict = prog##number(context);                                                                       \
		if ((__u32)verdict > STUB_VERDICT || !((1U << verdict) & conf.chain_call_actions[number]))             \
			return verdict;                                                                                \
	} while (0)

SEC("xdp")
int xdp_dispatcher(struct xdp_md *context)
{
	__u8 count = conf.num_progs_enabled;
	int verdict;

	CALL(0);
	CALL(1);
	CALL(2);
	CALL(3);
	CALL(4);
	CALL(5);
	CALL(6);
	CALL(7);
	CALL(8);
	CALL(9);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
/* libxdp recognises a dispatcher by this entry in its type information. */
__uint(dispatcher_version, VERSION) SEC("xdp_metadata");
