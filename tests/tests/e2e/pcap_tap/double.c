/* A libpcap of the tests that gives answers that no library should give. The device's name selects the answers. */
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

struct header { struct timeval time; uint32_t captured, original; };
struct figures { unsigned received, dropped, by_interface; };
struct instruction { uint16_t code; uint8_t jt, jf; uint32_t k; };
struct program { unsigned length; struct instruction *instructions; };
typedef struct { char device[64]; int shown, stop; unsigned asked; } pcap_t;
typedef void (*callback)(unsigned char *, const struct header *, const unsigned char *);

pcap_t *pcap_create(const char *device, char *error)
{
	pcap_t *pcap;

	if (!strcmp(device, "silent-failure")) {
		error[0] = 0;
		return NULL;
	}
	pcap = calloc(1, sizeof(*pcap));
	strncpy(pcap->device, device, sizeof(pcap->device) - 1);
	return pcap;
}

int pcap_set_snaplen(pcap_t *p, int n) { return 0; }
int pcap_set_promisc(pcap_t *p, int n) { return 0; }
int pcap_set_timeout(pcap_t *p, int n) { return 0; }
int pcap_set_buffer_size(pcap_t *p, int n) { return 0; }
int pcap_set_immediate_mode(pcap_t *p, int n) { return 0; }
/* Refuses nanoseconds, like netmap's module. */
int pcap_set_tstamp_precision(pcap_t *p, int n) { return -12; }
int pcap_get_tstamp_precision(pcap_t *p) { return 0; }
int pcap_activate(pcap_t *p) { return !strcmp(p->device, "unknown-status") ? -77 : 0; }
int pcap_datalink(pcap_t *p) { return !strcmp(p->device, "no-link-type") ? 70000 : 1; }
int pcap_setnonblock(pcap_t *p, int n, char *error) { return 0; }
int pcap_get_selectable_fd(pcap_t *p) { return -1; }
int pcap_setfilter(pcap_t *p, void *program) { return 0; }
/* Compiles a grammar that no library has: packets whose second byte is 7, or whose first is 2. Reports success for any other
 * text, without a program. */
int pcap_compile(pcap_t *p, struct program *program, const char *text, int optimise, uint32_t mask)
{
	static struct instruction newer[] = { { 0x30, 0, 0, 1 }, { 0x15, 0, 1, 7 }, { 6, 0, 0, 1000 }, { 6, 0, 0, 0 } };
	static struct instruction first_byte[] = { { 0x30, 0, 0, 0 }, { 0x15, 0, 1, 2 }, { 6, 0, 0, 1000 }, { 6, 0, 0, 0 } };

	if (!strcmp(text, "newer grammar")) {
		program->length = 4;
		program->instructions = newer;
		return 0;
	}
	if (!strcmp(text, "first byte 2")) {
		program->length = 4;
		program->instructions = first_byte;
		return 0;
	}
	return strcmp(p->device, "dead") ? 0 : -1;
}
pcap_t *pcap_open_dead(int link_type, int snaplen) { return pcap_create("dead", NULL); }
pcap_t *pcap_fopen_offline(void *file, char *error) { return pcap_create("dead", error); }
int pcap_setdirection(pcap_t *p, int n) { return -1; }
char *pcap_geterr(pcap_t *p) { return NULL; }
const char *pcap_statustostr(int status) { return NULL; }
void pcap_breakloop(pcap_t *p) { p->stop = 1; }
void pcap_close(pcap_t *p) { free(p); }
const char *pcap_lib_version(void) { return "libpcap \033[31mdouble"; }

/* Returns counters that overflow: first 10 before the overflow, then 5 after it. */
int pcap_stats(pcap_t *p, struct figures *figures)
{
	if (!strcmp(p->device, "no-figures"))
		return -1;
	if (!strcmp(p->device, "awkward"))
		*figures = (struct figures){ 4, 3, 1 };
	return 0;
}

static void show(pcap_t *p, callback call, unsigned char *user, struct header header)
{
	static const unsigned char bytes[64] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };

	if (!p->stop)
		call(user, &header, bytes);
}

int pcap_dispatch(pcap_t *p, int count, callback call, unsigned char *user)
{
	struct timeval now;

	if (!strcmp(p->device, "fails"))
		return -1;
	if (!strcmp(p->device, "boasts"))
		return 1000;
	if (strcmp(p->device, "awkward") || p->shown++)
		return 0;
	gettimeofday(&now, NULL);
	show(p, call, user, (struct header){ now, 60, 60 });
	/* This header claims more bytes than exist, and more than were requested. */
	show(p, call, user, (struct header){ now, 0xffffffff, 0xffffffff });
	/* This packet has more bytes than its original length. */
	show(p, call, user, (struct header){ now, 60, 14 });
	/* These times are impossible. */
	show(p, call, user, (struct header){ { -5, 0 }, 60, 60 });
	show(p, call, user, (struct header){ { now.tv_sec, 1000000 }, 60, 60 });
	/* This packet has no bytes. */
	show(p, call, user, (struct header){ now, 0, 60 });
	return 6;
}
