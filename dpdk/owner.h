/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the callbacks that each capture has put into the primary process, by which callbacks of killed captures
 * are distinguished from callbacks of live ones. */
#ifndef TRAWL_DPDK_OWNER_H
#define TRAWL_DPDK_OWNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A callback, by port, queue and direction (received or sent). */
struct place {
	uint16_t port;
	uint16_t queue;
	uint32_t direction;
};

/* Returns the directory of the primary's files: /run/dpdk/PREFIX, or DPDK's directory for users other than root. */
void runtime_directory(const char *prefix, char *path, size_t size);

/* Creates this process's record, which is locked while the process lives. Returns false with errno set on failure. */
bool owner_begin(const char *directory);
/* Records a callback before it is requested. */
bool owner_note(struct place place);
void owner_end(void);

/* Calls `clear` for each callback that a dead process recorded, then `release` with its PID, and removes its record. */
void owner_clear_dead(const char *directory, void (*clear)(struct place, int pid), void (*release)(int pid),
		      bool (*is_of_this_primary)(int pid));
/* Returns the PID of the live process that recorded this callback, or 0 if none did. */
int owner_of(const char *directory, struct place place);

#endif
