/* SPDX-License-Identifier: Apache-2.0 */
/* Who put which callbacks into the primary process, so that those of a killed capture can be told from those of a live
 * one. */
#ifndef TRAWL_DPDK_OWNER_H
#define TRAWL_DPDK_OWNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One callback: of a port's queue, received or sent. */
struct place {
	uint16_t port;
	uint16_t queue;
	uint32_t direction;
};

/* Where the primary's files are: /run/dpdk/PREFIX, or where DPDK puts it for users who are not root. */
void runtime_directory(const char *prefix, char *path, size_t size);

/* Makes this process's record, which is locked for as long as it lives; false with errno set. */
bool owner_begin(const char *directory);
/* Notes a callback before it is asked for. */
bool owner_note(struct place place);
void owner_end(void);

/* Calls `clear` for each callback that a dead process noted, then `release` with its PID, and forgets the process. */
void owner_clear_dead(const char *directory, void (*clear)(struct place, int pid), void (*release)(int pid),
		      bool (*is_of_this_primary)(int pid));
/* The PID of the live process that noted this callback; 0 for none. */
int owner_of(const char *directory, struct place place);

#endif
