"""The parts that the reproductions in this directory share: packets made by hand, a TCP peer, and sockets.

A lab has two namespaces, LAB-a and LAB-b, joined by veth0 (`trawl lab up`). Packets go from a to b.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import threading
import time

LAB = os.environ.get("LAB", "trawl-lab")
# The addresses of a lab, and a host that exists only as packets: the kernel of a does not answer for it.
MAC_A, MAC_B = bytes.fromhex("027472617701"), bytes.fromhex("027472617702")
A, B, STRANGER = "10.77.0.1", "10.77.0.2", "10.77.0.9"
A6, B6 = "fd00:77::1", "fd00:77::2"
FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(end):
    """Runs a block in the namespace of an end, `a` or `b`; sockets that it opens stay there."""
    with open("/proc/self/ns/net") as back, open(f"/run/netns/{LAB}-{end}") as there:
        check(LIBC.setns(there.fileno(), CLONE_NEWNET))
        try:
            yield
        finally:
            check(LIBC.setns(back.fileno(), CLONE_NEWNET))


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def run(end, command):
    """Runs a command in the namespace of an end, and returns its output."""
    words = ["ip", "netns", "exec", f"{LAB}-{end}", *command.split()]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def until(what, is_done, patience=float(os.environ.get("PATIENCE", 20))):
    """Waits until a condition holds; fails after a time."""
    end = time.monotonic() + patience
    while not is_done():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not happen within {patience:.0f} s")
        time.sleep(0.01)


def count(name, end="b"):
    """Returns a counter of nstat in the namespace of an end."""
    for line in run(end, f"nstat -asz {name}").splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    return 0


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def address(text):
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def ethernet(payload, to=MAC_B, source=MAC_A, kind=None):
    """Returns a frame; the kind of its payload is that of the IP version, unless it is given."""
    if kind is None:
        kind = 0x0800 if payload[0] >> 4 == 4 else 0x86DD
    return to + source + struct.pack("!H", kind) + payload


def ip(payload, protocol, source=A, to=B, ttl=64, tos=0, identifier=1, fragment=0, options=b"", length=None, right=True):
    """Returns an IPv4 packet. `fragment` holds flags and offset; `right` is false for a wrong checksum."""
    size = 20 + len(options)
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x40 | size // 4,
        tos,
        length or size + len(payload),
        identifier,
        fragment,
        ttl,
        protocol,
        0,
        address(source),
        address(to),
    )
    sum_of_header = checksum(header + options) ^ (0 if right else 0x5555)
    return header[:10] + struct.pack("!H", sum_of_header) + header[12:] + options + payload


def ip6(payload, following, source=A6, to=B6, hops=64):
    """Returns an IPv6 packet; `following` is the number of the next header."""
    return struct.pack("!IHBB", 6 << 28, len(payload), following, hops) + address(source) + address(to) + payload


def with_checksum(packet, at, protocol, source, to, right=True):
    """Returns a TCP, UDP or ICMPv6 packet with the checksum of its addresses and bytes at an offset."""
    pseudo = address(source) + address(to) + struct.pack("!II", len(packet), protocol)
    value = (checksum(pseudo + packet) or 0xFFFF) ^ (0 if right else 0x5555)
    return packet[:at] + struct.pack("!H", value) + packet[at + 2 :]


def udp(payload=b"x" * 18, port=7, source_port=40000, source=A, to=B, length=None, right=True):
    header = struct.pack("!HHHH", source_port, port, length or 8 + len(payload), 0)
    return with_checksum(header + payload, 6, 17, source, to, right)


def tcp(port, flags, payload=b"", source_port=40000, seq=1, ack=0, window=512, options=b"", source=A, to=B, right=True):
    options += b"\0" * (-len(options) % 4)
    size = 20 + len(options)
    header = struct.pack("!HHIIBBHHH", source_port, port, seq % 2**32, ack % 2**32, size // 4 << 4, flags, window, 0, 0)
    return with_checksum(header + options + payload, 16, 6, source, to, right)


def icmp(kind, code=0, rest=b"\0" * 4, right=True):
    packet = struct.pack("!BBH", kind, code, 0) + rest
    value = checksum(packet) ^ (0 if right else 0x5555)
    return packet[:2] + struct.pack("!H", value) + packet[4:]


def icmp6(kind, code=0, rest=b"\0" * 4, source=A6, to=B6, right=True):
    return with_checksum(struct.pack("!BBH", kind, code, 0) + rest, 2, 58, source, to, right)


def raw(end="a", interface="veth0", kind=0):
    """Opens a socket for whole frames at an interface; it receives those of a kind."""
    with inside(end):
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind))
        one.bind((interface, kind))
    return one


def send(*frames, end="a", interface="veth0"):
    """Sends frames out of an interface of an end."""
    with contextlib.closing(raw(end, interface)) as one:
        for frame in frames:
            # A queue or a program may refuse a frame.
            with contextlib.suppress(OSError):
                one.send(frame)


def listen(port, backlog=5, **options):
    """Returns a listening socket in b."""
    with inside("b"):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for name, value in options.items():
            one.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        one.bind((B, port))
        one.listen(backlog)
    return one


class Peer:
    """A TCP peer made by hand, whose segments may be wrong: STRANGER, to whom b's segments are sent over veth0."""

    def __init__(self, port, source_port=40000, seq=1000, options=b"", window=512):
        run("b", f"ip neigh replace {STRANGER} lladdr {MAC_A.hex(':')} dev veth0 nud permanent")
        self.port, self.source_port, self.options = port, source_port, options
        self.seq, self.ack, self.window = seq, 0, window
        self.socket = raw("a", kind=0x0800)
        self.socket.settimeout(20)

    def segment(self, flags=ACK, payload=b"", seq=0, ack=0, options=None, window=None, **of_tcp):
        """Returns a frame; `seq` and `ack` are relative to those that are due."""
        packet = tcp(
            self.port,
            flags,
            payload,
            self.source_port,
            self.seq + seq,
            self.ack + ack if flags & ACK else 0,
            self.window if window is None else window,
            self.options if options is None else options,
            STRANGER,
            **of_tcp,
        )
        return ethernet(ip(packet, 6, STRANGER))

    def send(self, flags=ACK, payload=b"", seq=0, ack=0, **more):
        """Sends a segment that does not count as sent."""
        self.socket.send(self.segment(flags, payload, seq, ack, **more))

    def say(self, payload, **more):
        """Sends data in order."""
        self.send(PSH | ACK, payload, **more)
        self.seq += len(payload)

    def receive(self, flags=0):
        """Waits for a segment of b; returns its sequence number, acknowledgement, payload and window."""
        while True:
            frame = self.socket.recv(65536)
            if frame[23] != 6 or frame[30:34] != address(STRANGER):
                continue
            tcp_at = 14 + (frame[14] & 15) * 4
            source, to, seq, ack, offset, has, window = struct.unpack_from("!HHIIBBH", frame, tcp_at)
            if (source, to) == (self.port, self.source_port) and has & flags == flags:
                end = 14 + struct.unpack_from("!H", frame, 16)[0]
                return seq, ack, frame[tcp_at + (offset >> 4) * 4 : end], window

    def begin(self, syn_options=None, syn_payload=b""):
        """Sends a SYN to the listening port, and waits for the answer."""
        self.send(SYN, syn_payload, options=syn_options)
        seq, self.seq, _, _ = self.receive(SYN | ACK)
        self.ack = seq + 1

    def connect(self, ack_options=None):
        """Makes a connection to the listening port."""
        self.begin()
        self.send(options=ack_options)
        return self


def begin_connect(to, port, source_port):
    """Sends a SYN from b; returns the socket."""
    with inside("b"):
        one = socket.socket()
        one.setblocking(False)
        one.bind((B, source_port))
        one.connect_ex((to, port))
    return one


def require_md5(listener, peer):
    """Gives a socket a key for the segments of a peer (TCP_MD5SIG)."""
    key = struct.pack("HH4s120xBBHI80s", socket.AF_INET, 0, address(peer), 0, 0, 3, 0, b"key")
    listener.setsockopt(socket.IPPROTO_TCP, 14, key)


def stamp(value, echo=0):
    """Returns the option with a time stamp."""
    return struct.pack("!BBBBII", 1, 1, 8, 10, value % 2**32, echo % 2**32)


def reject_all(one):
    """Attaches a classic filter that rejects all packets to a socket (SO_ATTACH_FILTER)."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(code)))


# Types of BPF programs, places to attach them, and the number of the system call.
SOCKET_FILTER, SCHED_CLS, CGROUP_SKB = 1, 3, 8
CGROUP_INET_EGRESS, TCX_INGRESS, TCX_EGRESS = 1, 46, 47
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, 128)
    return check(LIBC.syscall(BPF, command, buffer, len(buffer)))


def program(kind, returns, expected=0):
    """Loads a BPF program of two instructions, which returns a number; returns its descriptor."""
    code = ctypes.create_string_buffer(struct.pack("BBhiBBhi", 0xB7, 0, 0, returns, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    names = (ctypes.addressof(code), ctypes.addressof(licence))
    return bpf(5, struct.pack("IIQQIIQII16sII", kind, 2, *names, 0, 0, 0, 0, 0, b"drops", 0, expected))


def attach(descriptor, place, target):
    """Attaches a program to a cgroup or an interface, until this process ends."""
    return bpf(28, struct.pack("IIII", descriptor, target, place, 0))


@contextlib.contextmanager
def own_cgroup():
    """Moves this process into a new cgroup for the duration of a block."""
    with open("/proc/self/mountinfo") as mounts:
        root = next(line.split()[4] for line in mounts if " - cgroup2 " in line)
    with open("/proc/self/cgroup") as groups:
        before = next(line.split(":", 2)[2].strip() for line in groups if line.startswith("0::"))
    place = f"{root}/drops-{os.getpid()}"
    os.mkdir(place)
    descriptor = os.open(place, os.O_RDONLY)
    move(place)
    try:
        yield descriptor
    finally:
        move(root + before)
        os.close(descriptor)
        os.rmdir(place)


def move(group):
    with open(f"{group}/cgroup.procs", "w") as members:
        members.write(str(os.getpid()))


IFF_TUN, IFF_TAP, IFF_NO_PI, IFF_MULTI_QUEUE = 0x0001, 0x0002, 0x1000, 0x0100
TUNSETIFF, TUNSETTXFILTER, TUNSETQUEUE, TUNSETFILTEREBPF = 0x400454CA, 0x400454D1, 0x400454D9, 0x800454E1


def tun(name, flags, queue=500):
    """Opens a tun or tap device in b, and sets it up without IPv6, which would send packets; returns its file."""
    run("b", "sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
    with inside("b"):
        device = open("/dev/net/tun", "r+b", buffering=0)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags | IFF_NO_PI))
    run("b", f"ip link set {name} txqueuelen {queue} up")
    return device


def detach(device):
    """Detaches the queue of a tun device, as if no program had it open."""
    fcntl.ioctl(device, TUNSETQUEUE, struct.pack("16sH22x", b"", 0x0400))


def vxlan(number, frame, flags=8):
    """Returns a packet of VXLAN."""
    return struct.pack("!BxxxI", flags, number << 8) + frame


def qdisc_drops(kind):
    """Returns the number of packets that the queueing disciplines of a kind have dropped at veth0 of b."""
    shown = json.loads(run("b", "tc -s -j qdisc show dev veth0"))
    return sum(one["drops"] for one in shown if one["kind"] == kind)


def link_count(name, direction, what):
    """Returns a counter of an interface of b, by the names of `ip -s -j link`."""
    shown = json.loads(run("b", f"ip -s -j link show dev {name}"))
    return shown[0]["stats64"][direction][what]


USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04


@contextlib.contextmanager
def busy(connection):
    """Lets a thread read a socket into memory that is missing until the end of the block: the socket is in use so long."""
    faults = check(LIBC.syscall(USERFAULTFD, os.O_CLOEXEC))
    fcntl.ioctl(faults, UFFDIO_API, struct.pack("QQQ", 0xAA, 0, 0))
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(faults, UFFDIO_REGISTER, struct.pack("QQQQ", at, mmap.PAGESIZE, 1, 0))
    receive = LIBC.recv
    reader = threading.Thread(target=receive, args=(connection.fileno(), ctypes.c_void_p(at), 100, 0))
    reader.start()
    # The kernel reports the access to the missing page, which the thread waits for.
    os.read(faults, 32)
    try:
        yield
    finally:
        fcntl.ioctl(faults, UFFDIO_ZEROPAGE, struct.pack("QQQQ", at, mmap.PAGESIZE, 0, 0))
        reader.join()
        os.close(faults)
