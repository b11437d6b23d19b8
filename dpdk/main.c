/* SPDX-License-Identifier: Apache-2.0 */
/* trawl-dpdk joins a running DPDK application as a secondary process, requests copies of the packets of its ports from
 * its capture framework, and hands them to trawl as finished pcapng blocks. trawl starts it, and reads its reports on
 * standard output, which are lines of words separated by tabs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <rte_bpf.h>
#include <rte_common.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_version.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture.h"
#include "exchange_types.h"
#include "owner.h"
#include "places.h"
#include "pool.h"
#include "say.h"

/* The lcore of this process must not be one of the primary's. Applications hardly ever use the last one. */
#define OUR_LCORE (RTE_MAX_LCORE - 1)
/* The first word of the primary's configuration file. DPDK's version follows. */
#define CONFIG_MAGIC 19820526

struct arguments {
	const char *prefix;
	/* The list of ports, or NULL for all. */
	const char *ports;
	bool clear_only;
};

static bool read_arguments(int argc, char **argv, struct arguments *arguments)
{
	const struct option options[] = {
		{ "file-prefix", required_argument, NULL, 'f' },
		{ "ports", required_argument, NULL, 'p' },
		{ "clear", no_argument, NULL, 'c' },
		{ "version", no_argument, NULL, 'V' },
		{ 0 },
	};
	int option;

	*arguments = (struct arguments){ .prefix = "rte" };
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'f':
			arguments->prefix = optarg;
			break;
		case 'p':
			arguments->ports = optarg;
			break;
		case 'c':
			arguments->clear_only = true;
			break;
		case 'V':
			printf("trawl-dpdk %d %s\n", EXCHANGE_ABI, rte_version());
			exit(0);
		default:
			return false;
		}
	}
	return optind == argc;
}

/* Writes the option for our lcore, which runs on any of the CPUs that this process may use. */
static void write_lcore_option(char *text, size_t size)
{
	cpu_set_t allowed;
	size_t used = snprintf(text, size, "--lcores=%d@(", OUR_LCORE);
	const char *comma = "";

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		CPU_SET(0, &allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE && used < size - 8; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		used += snprintf(text + used, size - used, "%s%d", comma, cpu);
		comma = ",";
	}
	snprintf(text + used, size - used, ")");
}

/* Checks the primary before rte_eal_init(). That function succeeds on the remains of a dead primary, and does not
 * report different versions in a usable form. */
static void check_primary(const char *directory)
{
	uint32_t head[2] = { 0 };
	char path[512];
	int file;

	snprintf(path, sizeof(path), "%s/config", directory);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		fail("no_primary\t%s\t%s", directory, strerror(errno));
	if (!rte_eal_primary_proc_alive(path))
		fail("no_primary\t%s\tits process has ended", directory);
	if (read(file, head, sizeof(head)) != sizeof(head) || head[0] != CONFIG_MAGIC)
		fail("not_ready\t%s", directory);
	if (head[1] != RTE_VERSION)
		fail("version\t%u.%02u.%u\t%u.%02u.%u", head[1] >> 24, head[1] >> 16 & 0xff, head[1] >> 8 & 0xff,
		     RTE_VERSION >> 24, RTE_VERSION >> 16 & 0xff, RTE_VERSION >> 8 & 0xff);
	close(file);
}

static void join(const char *prefix)
{
	char prefix_option[256], cores[8192];
	char *options[] = { "trawl-dpdk", "--proc-type=secondary", prefix_option, cores, "--no-telemetry",
			    "--log-level=lib.*:warning" };

	snprintf(prefix_option, sizeof(prefix_option), "--file-prefix=%s", prefix);
	write_lcore_option(cores, sizeof(cores));
	if (rte_eal_init(RTE_DIM(options), options) < 0)
		fail("init\t%s", rte_strerror(rte_errno));
}

/* Maps the file that trawl passes as standard input, which has the header, and the ring after it. */
static struct exchange *map_exchange(void)
{
	struct exchange *header = mmap(NULL, EXCHANGE_HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, STDIN_FILENO, 0);
	size_t size;

	if (header == MAP_FAILED)
		fail("usage\tstandard input is not shared memory: run `trawl capture --tap dpdk`, which starts trawl-dpdk");
	size = EXCHANGE_HEADER + header->ring_bytes;
	munmap(header, EXCHANGE_HEADER);
	header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, STDIN_FILENO, 0);
	if (header == MAP_FAILED)
		fail("usage\tcannot map %zu bytes of shared memory: %s", size, strerror(errno));
	return header;
}

int main(int argc, char **argv)
{
	struct arguments arguments;
	char directory[256];
	bool primary_alive;

	if (!read_arguments(argc, argv, &arguments)) {
		fprintf(stderr, "usage: trawl-dpdk [--file-prefix PREFIX] [--ports N,...] [--clear] [--version]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* These signals are ignored, because trawl ends this process. If trawl is gone, the parent of this process
	 * changes. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	say("trawl-dpdk\t%d\t%s", EXCHANGE_ABI, rte_version());
	runtime_directory(arguments.prefix, directory, sizeof(directory));
	check_primary(directory);
	join(arguments.prefix);
	if (!pool_learn_operations())
		fail("no_pool");
	if (arguments.clear_only) {
		places_clear_dead(directory);
		rte_eal_cleanup();
		return 0;
	}
	primary_alive = capture(map_exchange(), directory, arguments.ports);
	owner_end();
	/* Without a primary, rte_eal_cleanup() would wait for an answer. */
	if (primary_alive)
		rte_eal_cleanup();
	fflush(NULL);
	_exit(0);
}
