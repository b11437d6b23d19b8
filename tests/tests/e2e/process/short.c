/* Many processes that end at once, and a server that forks for each connection: `short serve ADDRESS PORT` prints the number
 * of its first process; `short ask ADDRESS PORT COUNT AT_ONCE` prints a line for each client, as process.py does. */
#include <arpa/inet.h>
#include <err.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in address;

static int made(int kind)
{
	int one = 1, descriptor = socket(AF_INET, kind | SOCK_CLOEXEC, 0);

	if (descriptor < 0)
		err(1, "socket");
	setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	return descriptor;
}

static int bound(int kind)
{
	int descriptor = made(kind);

	if (bind(descriptor, (void *)&address, sizeof(address)))
		err(1, "bind");
	return descriptor;
}

static int connected(int kind)
{
	int descriptor = made(kind);

	if (connect(descriptor, (void *)&address, sizeof(address)))
		err(1, "connect");
	return descriptor;
}

/* Sends the number of this process before a text. */
static void send_own(int descriptor, const char *text)
{
	char own[64];
	int length = snprintf(own, sizeof(own), "%d %s", getpid(), text);

	if (send(descriptor, own, length, 0) != length)
		err(1, "send");
}

static int receive(int descriptor, char text[64])
{
	ssize_t length = recv(descriptor, text, 63, 0);

	if (length < 0)
		err(1, "recv");
	text[length] = 0;
	return atoi(text);
}

static int local_port(int descriptor)
{
	struct sockaddr_in own;
	socklen_t length = sizeof(own);

	getsockname(descriptor, (void *)&own, &length);
	return ntohs(own.sin_port);
}

static void answer_datagrams(int datagrams)
{
	for (;;) {
		struct sockaddr_in sender;
		socklen_t length = sizeof(sender);
		char text[32] = "", answer[64];

		if (recvfrom(datagrams, text, sizeof(text) - 1, 0, (void *)&sender, &length) < 0)
			err(1, "recvfrom");
		snprintf(answer, sizeof(answer), "%d %s", getpid(), text);
		sendto(datagrams, answer, strlen(answer), 0, (void *)&sender, length);
	}
}

static void serve(void)
{
	int datagrams = bound(SOCK_DGRAM), listening = bound(SOCK_STREAM);

	if (listen(listening, 1024))
		err(1, "listen");
	/* The kernel removes ended children, because nobody waits for them. */
	signal(SIGCHLD, SIG_IGN);
	if (fork()) {
		printf("%d\n", getpid());
		fflush(stdout);
		answer_datagrams(datagrams);
	}
	for (;;) {
		int connection = accept(listening, NULL, NULL);
		char text[64];

		if (connection < 0)
			err(1, "accept");
		if (!fork()) {
			receive(connection, text);
			send_own(connection, "");
			receive(connection, text);
			_exit(0);
		}
		close(connection);
	}
}

static void ask_once(void)
{
	int datagram = connected(SOCK_DGRAM), connection, receiver, worker;
	char text[64];

	send_own(datagram, "");
	receiver = receive(datagram, text);
	connection = connected(SOCK_STREAM);
	send_own(connection, "");
	worker = receive(connection, text);
	dprintf(1, "%d %d %d %d %d\n", local_port(datagram), local_port(connection), getpid(), receiver, worker);
}

static void ask(char **arguments, int count, int most)
{
	char *one[] = { arguments[0], "one", arguments[2], arguments[3], NULL };
	int running = 0;

	while (count > 0 || running > 0) {
		if (count > 0 && running < most) {
			if (posix_spawn(&(pid_t){ 0 }, arguments[0], NULL, NULL, one, NULL))
				errx(1, "%s", arguments[0]);
			running++;
			count--;
		} else if (wait(NULL) > 0) {
			running--;
		}
	}
}

int main(int count, char **arguments)
{
	address.sin_family = AF_INET;
	if (count < 4 || inet_pton(AF_INET, arguments[2], &address.sin_addr) != 1)
		errx(1, "serve|ask|one ADDRESS PORT [COUNT AT_ONCE]");
	address.sin_port = htons(atoi(arguments[3]));
	if (!strcmp(arguments[1], "serve"))
		serve();
	else if (!strcmp(arguments[1], "one"))
		ask_once();
	else
		ask(arguments, atoi(arguments[4]), atoi(arguments[5]));
}
