/* SPDX-License-Identifier: Apache-2.0 */
/* Reports to trawl on standard output. */
#ifndef TRAWL_DPDK_SAY_H
#define TRAWL_DPDK_SAY_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((format(printf, 1, 2))) static inline void say(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vprintf(format, values);
	va_end(values);
	putchar('\n');
	fflush(stdout);
}

/* Reports why the capture failed, and ends the process. */
#define fail(...)                        \
	do {                             \
		say("fail\t" __VA_ARGS__); \
		_exit(1);                \
	} while (0)

#endif
