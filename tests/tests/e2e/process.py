"""Servers and clients whose processes are known: `process.py serve MODE ADDRESS PORT [PROGRAM]` and
`process.py ask MODE ADDRESS PORT COUNT`. Services that a manager starts run by PROGRAM, a name of Python.

Each client is a process of its own. It sends its number in a datagram and over a connection. Each answer begins with the
number of the server's process that handles it; an answer to a datagram also has the number of the client's. `ask` prints
a line for each client: its two local ports, its process, and the two processes that answered.
"""

import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
WORKERS = 4
AT_ONCE = 4
SO_ATTACH_REUSEPORT_CBPF = 51
# The member of a steered group that gets all packets by the group's program.
CHOSEN = 2
# The local port of all clients that use one, plus the server's port.
SAME_PORT = 10_000


class Ring:
    """An io_uring for one request at a time."""

    SETUP, ENTER = 425, 426
    SEND, RECEIVE, ACCEPT = 26, 27, 13
    BY_KERNEL_THREAD = 2

    def __init__(self, flags=0):
        parameters = (ctypes.c_uint32 * 30)()
        parameters[2] = flags
        self.descriptor = LIBC.syscall(self.SETUP, 4, parameters)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        self.submitted, self.completed = parameters[10:20], parameters[20:30]
        size = self.submitted[6] + 4 * parameters[0]
        self.requests = mmap.mmap(self.descriptor, size, offset=0)
        self.entries = mmap.mmap(self.descriptor, 64 * parameters[0], offset=0x10000000)
        self.answers = mmap.mmap(self.descriptor, self.completed[5] + 16 * parameters[1], offset=0x8000000)

    def do(self, operation, descriptor, buffer=None):
        tail, mask = self.word(self.requests, self.submitted[1]), self.word(self.requests, self.submitted[2])
        address = ctypes.addressof(buffer) if buffer else 0
        length = len(buffer) if buffer else 0
        self.entries[:64] = struct.pack("=BBHiQQIIQ24x", operation, 0, 0, descriptor, 0, address, length, 0, 1)
        self.word(self.requests, self.submitted[6] + 4 * (tail.value & mask.value)).value = 0
        tail.value += 1
        head, mask = self.word(self.answers, self.completed[0]), self.word(self.answers, self.completed[2])
        to_submit = 1
        while self.word(self.answers, self.completed[1]).value == head.value:
            # This call waits for an answer, and wakes the kernel's thread if it sleeps.
            if LIBC.syscall(self.ENTER, self.descriptor, to_submit, 1, 3, None, 0) < 0:
                raise OSError(ctypes.get_errno(), "io_uring_enter")
            to_submit = 0
        result = struct.unpack_from("=i", self.answers, self.completed[5] + 16 * (head.value & mask.value) + 8)[0]
        head.value += 1
        if result < 0:
            raise OSError(-result, "a request to io_uring")
        return result

    def word(self, memory, at):
        """Returns a word that is read and written whole: struct.pack_into clears it first, and the kernel's thread sees that."""
        return ctypes.c_uint32.from_buffer(memory, at)


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bound(kind, address, port, is_shared=False):
    made = socket.socket(family(address), kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((address, port))
    return made


def own_number():
    return b"%d\n" % os.getpid()


def answer(connection):
    connection.recv(64)
    connection.sendall(own_number())
    try:
        connection.recv(64)
    except ConnectionResetError:
        pass
    connection.close()


def answer_first(connection):
    connection.sendall(own_number())
    connection.recv(64)
    connection.recv(64)
    connection.close()


def answer_and_close(connection):
    connection.recv(64)
    connection.sendall(own_number())
    connection.close()


def answer_by_file(connection):
    file = os.memfd_create("answer")
    os.write(file, own_number())
    os.sendfile(connection.fileno(), file, 0, 64)
    connection.recv(64)
    connection.recv(64)
    connection.close()


def answer_as_another_program(connection):
    os.set_inheritable(connection.fileno(), True)
    os.execv(sys.executable, [sys.executable, __file__, "answer", str(connection.fileno())])


def answer_by_ring(flags):
    def work(listening):
        ring = Ring(flags)
        while True:
            descriptor = ring.do(Ring.ACCEPT, listening.fileno())
            ring.do(Ring.RECEIVE, descriptor, ctypes.create_string_buffer(64))
            own = own_number()
            ring.do(Ring.SEND, descriptor, ctypes.create_string_buffer(own, len(own)))
            ring.do(Ring.RECEIVE, descriptor, ctypes.create_string_buffer(64))
            os.close(descriptor)

    return work


def accept_without_address(listening):
    return socket.socket(fileno=LIBC.accept(listening.fileno(), None, None))


def accept(listening):
    return listening.accept()[0]


def child(work, *arguments):
    if os.fork() == 0:
        work(*arguments)
        os._exit(0)


def work_alone(accept, listening):
    while True:
        answer(accept(listening))


def fork_each(work):
    def serve(listening):
        while True:
            connection = accept(listening)
            child(work, connection)
            connection.close()

    return serve


def work_for(channel):
    while True:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not descriptors:
            return
        answer(socket.socket(fileno=descriptors[0]))


def pass_each(listening):
    channels = []
    for _ in range(WORKERS):
        own, others = socket.socketpair()
        child(work_for, others)
        channels.append(own)
    number = 0
    while True:
        connection = accept(listening)
        socket.send_fds(channels[number % WORKERS], [b"x"], [connection.fileno()])
        connection.close()
        number += 1


def start_service(work, given):
    if os.fork() == 0:
        os.set_inheritable(given.fileno(), True)
        os.execv(sys.argv[5], [sys.argv[5], __file__, work, str(given.fileno())])


def activate(listening):
    """Starts a service once a connection comes, and gives it the listening socket."""
    select.select([listening], [], [])
    start_service("accept", listening)
    signal.pause()


def activate_each(listening):
    """Starts a service for each connection."""
    while True:
        connection = accept(listening)
        start_service("answer", connection)
        connection.close()


def echo(datagrams):
    while True:
        text, sender = datagrams.recvfrom(64)
        datagrams.sendto(b"%d %s" % (os.getpid(), text), sender)


def steer(member):
    """Gives the member's group a program that chooses one member."""
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, CHOSEN), 8)
    program = struct.pack("@HxxxxxxQ", 1, ctypes.addressof(instruction))
    member.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)


def serve_group(address, port, is_steered):
    """Starts members one after the other, so that they get their numbers in the group in this order."""
    for _ in range(WORKERS):
        begun, begins = os.pipe()

        def member():
            is_for_datagrams = os.fork() == 0
            kind = socket.SOCK_DGRAM if is_for_datagrams else socket.SOCK_STREAM
            made = bound(kind, address, port, True)
            if not is_for_datagrams:
                made.listen(128)
            if is_steered:
                steer(made)
            os.close(begins)
            if is_for_datagrams:
                echo(made)
            work_alone(accept, made)

        child(member)
        os.close(begins)
        os.read(begun, 1)
        os.close(begun)


PREFORKED = {
    "prefork": lambda listening: work_alone(accept_without_address, listening),
    "prefork-address": lambda listening: work_alone(accept, listening),
    "ring": answer_by_ring(0),
    "ring-thread": answer_by_ring(Ring.BY_KERNEL_THREAD),
}
ONE = {
    "alone": lambda listening: work_alone(accept, listening),
    "pass": pass_each,
    "fork": fork_each(answer),
    "first": fork_each(answer_first),
    "close": fork_each(answer_and_close),
    "file": fork_each(answer_by_file),
    "exec": fork_each(answer_as_another_program),
    "activated": activate,
    "activated-each": activate_each,
}


def serve(mode, address, port):
    # The kernel removes ended children, because nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if mode in ("group", "steered"):
        serve_group(address, port, mode == "steered")
        print(os.getpid(), flush=True)
        signal.pause()
    datagrams = bound(socket.SOCK_DGRAM, address, port)
    listening = bound(socket.SOCK_STREAM, address, port)
    listening.listen(128)
    if mode in PREFORKED:
        for _ in range(WORKERS):
            child(PREFORKED[mode], listening)
    else:
        child(ONE[mode], listening)
    listening.close()
    print(os.getpid(), flush=True)
    echo(datagrams)


def ask_by(datagram, connection, address, port):
    datagram.send(own_number())
    receiver = datagram.recv(64).split()[0]
    connection.connect((address, port))
    connection.sendall(own_number())
    worker = connection.recv(64).strip()
    ports = (datagram.getsockname()[1], connection.getsockname()[1])
    return ports, receiver, worker


def print_truth(ports, receiver, worker):
    os.write(1, b"%d %d %d %s %s\n" % (*ports, os.getpid(), receiver, worker))


def connected(address, port):
    datagram = socket.socket(family(address), socket.SOCK_DGRAM)
    datagram.connect((address, port))
    return datagram


def ask_once(address, port, datagram=None):
    connection = socket.socket(family(address), socket.SOCK_STREAM)
    truth = ask_by(datagram or connected(address, port), connection, address, port)
    connection.sendall(b"bye\n")
    connection.close()
    print_truth(*truth)


def ask_from_one_port(address, port):
    """The connection ends with a reset, so that the next client can have its port at once."""
    connection = bound(socket.SOCK_STREAM, "", port + SAME_PORT)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    truth = ask_by(connected(address, port), connection, address, port)
    connection.close()
    print_truth(*truth)


def ask_after_its_end(address, port):
    """The server closes first, and its end of the connection waits for late packets when the next client comes."""
    connection = bound(socket.SOCK_STREAM, "::" if ":" in address else "", port + SAME_PORT)
    truth = ask_by(connected(address, port), connection, address, port)
    while connection.recv(64):
        pass
    connection.close()
    # The time stamps of the next connection must be later than those of this one.
    time.sleep(0.005)
    print_truth(*truth)


def ask(mode, address, port, count):
    running = 0
    at_once = AT_ONCE if mode in ("each", "inherited") else 1
    work = {"one-port": ask_from_one_port, "time-wait": ask_after_its_end}.get(mode, ask_once)

    def client(*arguments):
        # The alarm ends a client without an answer, for which the test would wait forever.
        signal.alarm(300)
        work(*arguments)

    for _ in range(count):
        inherited = [connected(address, port)] if mode == "inherited" else []
        child(client, address, port, *inherited)
        for datagram in inherited:
            # This call and the close must not count as a use of the socket.
            datagram.getpeername()
            datagram.close()
        running += 1
        if running == at_once:
            os.wait()
            running -= 1
    for _ in range(running):
        os.wait()


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def write_segment(device, port):
    """Writes the first segment of a connection from 10.99.0.2 to 10.99.0.1 to a tap device, and waits for the answer."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    no_information, tap, set_device = 0x1000, 2, 0x400454CA
    fcntl.ioctl(descriptor, set_device, struct.pack("16sH22x", device.encode(), tap | no_information))
    with open(f"/sys/class/net/{device}/address") as file:
        own = bytes.fromhex(file.read().strip().replace(":", ""))
    addresses = socket.inet_aton("10.99.0.2") + socket.inet_aton("10.99.0.1")

    def segment(check):
        return struct.pack("!HHIIBBHHH", 4444, port, 1, 0, 5 << 4, 2, 65535, check, 0)

    def packet(check):
        return struct.pack("!BBHHHBBH", 0x45, 0, 40, 1, 0, 64, socket.IPPROTO_TCP, check) + addresses

    sum_of_segment = checksum(addresses + struct.pack("!HH", socket.IPPROTO_TCP, 20) + segment(0))
    link = own + bytes.fromhex("0200000000090800")
    os.write(descriptor, link + packet(checksum(packet(0))) + segment(sum_of_segment))
    while True:
        frame = os.read(descriptor, 2048)
        if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_TCP:
            return


def ping(address):
    """Sends echo requests with this process's number, by a socket for them and by a raw one, and waits for the answers."""
    protocol, request = (socket.IPPROTO_ICMPV6, 128) if ":" in address else (socket.IPPROTO_ICMP, 8)
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        pinging = socket.socket(family(address), kind, protocol)
        message = struct.pack("!BBHHH", request, 0, 0, 1, 1) + struct.pack("!I", os.getpid())
        if protocol == socket.IPPROTO_ICMP:
            message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
        pinging.sendto(message, (address, 0))
        pinging.recv(64)


def main():
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1] == "answer":
        answer(socket.socket(fileno=int(sys.argv[2])))
    elif sys.argv[1] == "accept":
        work_alone(accept, socket.socket(fileno=int(sys.argv[2])))
    elif sys.argv[1] == "ping":
        ping(sys.argv[2])
    elif sys.argv[1] == "write":
        write_segment(sys.argv[2], int(sys.argv[3]))
    else:
        ask(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))


if __name__ == "__main__":
    main()
