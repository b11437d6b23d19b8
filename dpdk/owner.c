/* SPDX-License-Identifier: Apache-2.0 */
/* Records of owners. Each capture has a file next to the primary's files, which is locked while the capture lives. */
#define _GNU_SOURCE
#include "owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEM "trawl_owner_"

static char own_path[512];
static int own_file = -1;

void runtime_directory(const char *prefix, char *path, size_t size)
{
	const char *user = getenv("XDG_RUNTIME_DIR");
	const char *base = getuid() == 0 ? "/run" : user ? user : "/tmp";

	snprintf(path, size, "%s/dpdk/%s", base, prefix);
}

bool owner_begin(const char *directory)
{
	snprintf(own_path, sizeof(own_path), "%s/" STEM "%d", directory, getpid());
	own_file = open(own_path, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600);
	return own_file >= 0 && flock(own_file, LOCK_EX | LOCK_NB) == 0;
}

bool owner_note(struct place place)
{
	return dprintf(own_file, "%u %u %u\n", place.port, place.queue, place.direction) > 0;
}

void owner_end(void)
{
	if (own_file < 0)
		return;
	unlink(own_path);
	close(own_file);
	own_file = -1;
}

static bool next_place(FILE *file, struct place *place)
{
	unsigned int port, queue, direction;

	if (fscanf(file, "%u %u %u", &port, &queue, &direction) != 3)
		return false;
	*place = (struct place){ .port = port, .queue = queue, .direction = direction };
	return true;
}

/* Opens an owner's record, and sets `*alive` if a process holds its lock. */
static FILE *open_record(const char *directory, const char *name, char *path, size_t size, bool *alive)
{
	int fd;

	snprintf(path, size, "%s/%s", directory, name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	*alive = flock(fd, LOCK_EX | LOCK_NB) != 0;
	return fdopen(fd, "r");
}

static bool is_record(const struct dirent *entry, int *pid)
{
	if (strncmp(entry->d_name, STEM, strlen(STEM)) != 0)
		return false;
	*pid = atoi(entry->d_name + strlen(STEM));
	return *pid > 0 && *pid != getpid();
}

void owner_clear_dead(const char *directory, void (*clear)(struct place, int pid), void (*release)(int pid),
		      bool (*is_of_this_primary)(int pid))
{
	DIR *list = opendir(directory);
	struct dirent *entry;
	struct place place;
	char path[768];
	bool alive;
	FILE *file;
	int pid;

	while (list && (entry = readdir(list))) {
		if (!is_record(entry, &pid) || !(file = open_record(directory, entry->d_name, path, sizeof(path), &alive)))
			continue;
		if (!alive) {
			/* If the record belongs to an earlier primary of the same name, its callbacks ended with that
			 * primary. */
			if (is_of_this_primary(pid)) {
				while (next_place(file, &place))
					clear(place, pid);
				release(pid);
			}
			unlink(path);
		}
		fclose(file);
	}
	if (list)
		closedir(list);
}

int owner_of(const char *directory, struct place wanted)
{
	DIR *list = opendir(directory);
	struct dirent *entry;
	struct place place;
	char path[768];
	bool alive;
	FILE *file;
	int pid, owner = 0;

	while (list && !owner && (entry = readdir(list))) {
		if (!is_record(entry, &pid) || !(file = open_record(directory, entry->d_name, path, sizeof(path), &alive)))
			continue;
		while (alive && !owner && next_place(file, &place))
			if (place.port == wanted.port && place.queue == wanted.queue && place.direction == wanted.direction)
				owner = pid;
		fclose(file);
	}
	if (list)
		closedir(list);
	return owner;
}
