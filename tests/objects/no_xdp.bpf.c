// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A program of another type. */
#include "../programs/common.h"

SEC("tc")
int for_tc(struct __sk_buff *context)
{
	(void)context;
	return 0;
}
