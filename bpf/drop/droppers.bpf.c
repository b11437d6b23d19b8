// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Notes the object that drops a packet: a rule or policy of nftables, or a cgroup's programs for received packets.
 * nftables evaluates the expressions of rules one by one, and an expression does not name its rule. The programs
 * therefore note the chains that a packet passes, run after the expressions that can set a verdict, and search these
 * chains for the rule that contains the expression. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "drop/dropper.h"

char LICENSE[] SEC("license") = "GPL";

/* Verdicts: NF_DROP, NFT_JUMP and NFT_GOTO. */
#define DROP 0
#define JUMP (-3)
#define GOTO (-4)
#define VERDICT_MASK 0xff
/* CGROUP_INET_INGRESS */
#define CGROUP_INGRESS 0
/* Maximum number of known rules, of rules in a chain, and of a packet's last jumps that are kept. */
#define KNOWN_RULES 4096
#define RULES_MAX (1 << 18)
#define JUMPS_MAX 16
/* struct nft_rule_dp, which precedes a rule's expressions, has a bit that marks the end of the chain, the length of the
 * expressions, and the handle. */
#define HEADER_LENGTH 8
#define IS_END(word) ((word) & 1)
#define RULE_LENGTH(word) (HEADER_LENGTH + ((word) >> 1 & 0xfff))
#define HANDLE(word) ((word) >> 13 & ((1ull << 42) - 1))

/* The loader finds the offsets of these fields in the types of the kernel and of its modules. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nft_table {
	__u64 handle;
	__u16 family : 6;
	char *name;
};

/* The rules of a chain in consecutive memory. */
struct nft_rule_blob {
	unsigned long size;
	unsigned char data[1];
};

/* A chain has the rules of two generations, of which one is in force. */
struct nft_chain {
	struct nft_rule_blob *blob_gen_0;
	struct nft_rule_blob *blob_gen_1;
	struct nft_table *table;
	__u64 handle;
	char *name;
};

struct nft_base_chain {
	__u8 policy;
	struct nft_chain chain;
};

struct nft_verdict {
	__u32 code;
	struct nft_chain *chain;
};

struct nft_regs {
	struct nft_verdict verdict;
};

struct nft_pktinfo {
	struct sk_buff *skb;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_cgroup_data sk_cgrp_data;
};

#pragma clang attribute pop

/* The chains that the last packet on this CPU has passed. */
struct path {
	struct nft_chain *base;
	struct nft_chain *jumps[JUMPS_MAX];
	__u32 jump_count;
	__u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct path);
} paths SEC(".maps");

/* A rule in memory, or a policy, which has only a chain. Different handles show that the chain's memory was reused. */
struct known_rule {
	__u64 header;
	__u64 header_word;
	struct nft_chain *chain;
	__u64 chain_handle;
	__u64 table_handle;
	__u64 number;
};

/* The key is the address of the expression that drops, or of the chain whose policy drops. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, KNOWN_RULES);
	__type(key, __u64);
	__type(value, struct known_rule);
} known_rules SEC(".maps");

/* The rules by number, which user space reads. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, KNOWN_RULES);
	__type(key, __u64);
	__type(value, struct nft_rule);
} nft_rules SEC(".maps");

static const struct nft_rule no_rule;
static __u64 last_number;

static __always_inline struct path *path_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&paths, &zero);
}

/* Returns the address of the first rule if the rules contain the expression, or 0. */
static __always_inline __u64 rules_with(struct nft_rule_blob *rules, __u64 expression)
{
	__u64 first = (__u64)rules + bpf_core_field_offset(struct nft_rule_blob, data);

	if (!rules || expression < first || expression - first >= BPF_CORE_READ(rules, size))
		return 0;
	return first;
}

static __always_inline __u64 rules_of(struct nft_chain *chain, __u64 expression)
{
	return rules_with(BPF_CORE_READ(chain, blob_gen_0), expression) ?:
	       rules_with(BPF_CORE_READ(chain, blob_gen_1), expression);
}

struct walk {
	__u64 rule;
	__u64 word;
	__u64 expression;
	bool found;
};

/* Continues with the next rule unless this one contains the expression. */
static long find_rule(__u64 step, void *context)
{
	struct walk *walk = context;

	(void)step;
	if (bpf_probe_read_kernel(&walk->word, sizeof(walk->word), (void *)walk->rule) || IS_END(walk->word))
		return 1;
	walk->found = walk->expression - walk->rule < RULE_LENGTH(walk->word);
	if (walk->found)
		return 1;
	walk->rule += RULE_LENGTH(walk->word);
	return 0;
}

/* Finds the rule of an expression, in the base chain or in the last chains to which the packet jumped. */
static __always_inline bool find(__u64 expression, struct known_rule *rule)
{
	struct path *path = path_here();
	struct walk walk = { .expression = expression };

	if (!path)
		return false;
	rule->chain = path->base;
	walk.rule = rules_of(rule->chain, expression);
	for (__u32 i = 0; i < JUMPS_MAX && !walk.rule; i++) {
		if (i >= path->jump_count)
			return false;
		rule->chain = path->jumps[i];
		walk.rule = rules_of(rule->chain, expression);
	}
	if (!walk.rule)
		return false;
	bpf_loop(RULES_MAX, find_rule, &walk, 0);
	rule->header = walk.rule;
	rule->header_word = walk.word;
	return walk.found;
}

/* Returns true if this memory still holds the same rule, or the same chain. */
static __always_inline bool is_same(const struct known_rule *known, __u64 address)
{
	struct nft_chain *chain = known->chain;
	__u64 word = 0;

	if (known->header) {
		bpf_probe_read_kernel(&word, sizeof(word), (void *)known->header);
		if (word != known->header_word || !rules_of(chain, address))
			return false;
	}
	return BPF_CORE_READ(chain, handle) == known->chain_handle &&
	       BPF_CORE_READ(chain, table, handle) == known->table_handle;
}

/* Gives a rule or policy the next number, under which user space finds its names. */
static __always_inline __u64 add(struct nft_chain *chain, __u64 handle)
{
	__u64 number = __sync_fetch_and_add(&last_number, 1) + 1;
	struct nft_table *table = BPF_CORE_READ(chain, table);
	struct nft_rule *rule;

	bpf_map_update_elem(&nft_rules, &number, &no_rule, BPF_ANY);
	rule = bpf_map_lookup_elem(&nft_rules, &number);
	if (!rule)
		return 0;
	rule->handle = handle;
	rule->family = BPF_CORE_READ_BITFIELD_PROBED(table, family);
	bpf_probe_read_kernel_str(rule->table, sizeof(rule->table), BPF_CORE_READ(table, name));
	bpf_probe_read_kernel_str(rule->chain, sizeof(rule->chain), BPF_CORE_READ(chain, name));
	return number;
}

/* Returns the number of the rule with this expression, or of the policy of this chain. Returns 0 if none is found. */
static __always_inline __u64 number_of(__u64 address, bool is_policy)
{
	struct known_rule *known = bpf_map_lookup_elem(&known_rules, &address), new = {};
	struct nft_chain *chain;

	if (known) {
		if (is_same(known, address))
			return known->number;
		bpf_map_delete_elem(&known_rules, &address);
	}
	if (is_policy)
		new.chain = (void *)address;
	else if (!find(address, &new))
		return 0;
	chain = new.chain;
	new.chain_handle = BPF_CORE_READ(chain, handle);
	new.table_handle = BPF_CORE_READ(chain, table, handle);
	new.number = add(chain, HANDLE(new.header_word));
	bpf_map_update_elem(&known_rules, &address, &new, BPF_ANY);
	return new.number;
}

static __always_inline void note(const struct sk_buff *buffer, __u64 dropper)
{
	__u32 zero = 0;
	struct latest_drop *latest = bpf_map_lookup_elem(&latest_drops, &zero);

	if (!latest)
		return;
	latest->buffer = dropper ? (__u64)buffer : 0;
	latest->dropper = dropper;
}

static __always_inline const struct sk_buff *buffer_of(__u64 packet)
{
	return ((struct nft_pktinfo *)packet)->skb;
}

/* Returns the address as a number, on which the verifier allows arithmetic. */
static __always_inline __u64 plain(__u64 address)
{
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &address);
	return number;
}

/* Handles the end of an expression. The program's arguments are the expression, the registers, and the packet. */
static __always_inline int evaluated(__u64 *arguments)
{
	const struct nft_regs *registers = (void *)arguments[1];
	int code = registers->verdict.code;
	struct path *path;

	if ((code & VERDICT_MASK) == DROP) {
		note(buffer_of(arguments[2]), number_of(plain(arguments[0]), false));
	} else if (code == JUMP || code == GOTO) {
		path = path_here();
		if (path)
			path->jumps[path->jump_count++ % JUMPS_MAX] = registers->verdict.chain;
	}
	return 0;
}

/* The loader leaves out programs at functions that the kernel does not have. */
#define AFTER(function)                        \
	SEC("?fexit/" #function)               \
	int after_##function(__u64 *arguments) \
	{                                      \
		return evaluated(arguments);   \
	}

/* Expressions that send an answer need a program before them, too: the answer passes chains of its own, which replace
 * the noted chains before the packet's verdict is set. */
#define BEFORE(function)                                                      \
	SEC("?fentry/" #function)                                             \
	int before_##function(__u64 *arguments)                               \
	{                                                                     \
		__u64 expression = plain(arguments[0]);                       \
                                                                              \
		if (!bpf_map_lookup_elem(&known_rules, &expression))          \
			number_of(expression, false);                         \
		return 0;                                                     \
	}                                                                     \
	AFTER(function)

/* These expressions set verdicts of rules and of maps. */
AFTER(nft_immediate_eval)
AFTER(nft_lookup_eval)
BEFORE(nft_reject_inet_eval)
BEFORE(nft_reject_ipv4_eval)
BEFORE(nft_reject_ipv6_eval)
BEFORE(nft_reject_netdev_eval)
BEFORE(nft_reject_bridge_eval)
/* These expressions run targets of iptables. */
BEFORE(nft_target_eval_xt)
BEFORE(nft_target_eval_bridge)

/* Arguments: packet, base chain. The chain's policy is noted first, because it applies unless a rule decides. */
SEC("?fentry/nft_do_chain")
int before_nft_do_chain(__u64 *arguments)
{
	struct nft_chain *chain = (void *)arguments[1];
	struct nft_base_chain *base = (void *)chain - bpf_core_field_offset(struct nft_base_chain, chain);
	struct path *path = path_here();
	bool drops = BPF_CORE_READ(base, policy) == DROP;

	if (!path)
		return 0;
	path->base = chain;
	path->jump_count = 0;
	note(buffer_of(arguments[0]), drops ? number_of((__u64)chain, true) : 0);
	return 0;
}

/* The third value is the verdict. */
SEC("?fexit/nft_do_chain")
int after_nft_do_chain(__u64 *arguments)
{
	if ((arguments[2] & VERDICT_MASK) != DROP)
		note(NULL, 0);
	return 0;
}

/* Arguments: socket, buffer, hook, and the result. */
SEC("?fexit/__cgroup_bpf_run_filter_skb")
int after_cgroup_programs(__u64 *arguments)
{
	const struct sock *socket = (void *)arguments[0];

	if ((__u32)arguments[2] == CGROUP_INGRESS && (__u32)arguments[3])
		note((void *)arguments[1], socket->sk_cgrp_data.cgroup->kn->id | DROPPER_CGROUP);
	return 0;
}
