// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Reads the addresses at which the kernel's direct map and its array of struct page begin. User space runs the program
 * once, because libbpf would look the symbols up in /proc/kallsyms, for which the kernel writes a hundred thousand
 * lines at each read. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"

char LICENSE[] SEC("license") = "GPL";

/* Addresses in kernels that do not randomise them at boot. */
#define PAGE_OFFSET_FIXED 0xffff888000000000ull
#define VMEMMAP_FIXED 0xffffea0000000000ull

#define READ_SYMBOL(name, otherwise)                                                     \
	({                                                                               \
		static const char symbol[] = name;                                       \
		__u64 address = 0, value = otherwise;                                    \
		if (!bpf_kallsyms_lookup_name(symbol, sizeof(symbol), 0, &address) &&    \
		    bpf_probe_read_kernel(&value, sizeof(value), (void *)address))       \
			value = otherwise;                                               \
		value;                                                                   \
	})

SEC("syscall")
int trawl_addresses(struct kernel_addresses *found)
{
	found->first_address = READ_SYMBOL("page_offset_base", PAGE_OFFSET_FIXED);
	found->first_page = READ_SYMBOL("vmemmap_base", VMEMMAP_FIXED);
	return 0;
}
