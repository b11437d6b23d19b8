# Sockets and a tun device that refuse packets: the arguments are the interface and the sender's address. Prints
# "ready". At the first line it reads, it prints the numbers of a connection to port 4008: the client's port, the next
# sequence number, its acknowledgement and its time stamp. At the second, it sends datagrams to the tun device and the
# bridges.
import ctypes
import fcntl
import socket
import struct
import sys

interface, sender = sys.argv[1], socket.inet_aton(sys.argv[2])


def listener(port, backlog=5):
    one = socket.socket()
    one.bind(("0.0.0.0", port))
    one.listen(backlog)
    return one


kept = [listener(port) for port in (4001, 4002, 4008)] + [listener(4003, 2)]
# IP_MINTTL, TCP_MD5SIG
kept[0].setsockopt(0, 21, 255)
key = struct.pack("HH4s120xBBHI80s", socket.AF_INET, 0, sender, 0, 0, 3, 0, b"key")
try:
    kept[1].setsockopt(6, 14, key)
except OSError:
    pass
# This socket has a filter that rejects all packets.
filtered = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
filtered.bind(("0.0.0.0", 4004))
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
filtered.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(code)))
# Nobody reads this packet socket, which has the smallest buffer.
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
packets.bind((interface, 3))
try:
    tun = open("/dev/net/tun", "r+b", buffering=0)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001))
except OSError:
    pass
segments = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
segments.bind((interface, 0x0800))
print("ready", flush=True)
sys.stdin.readline()
connection, (_, port) = kept[2].accept()
numbers = None
while not numbers:
    frame = segments.recv(2000).ljust(66, b"\0")
    source, destination, sequence, acknowledgement, offset = struct.unpack_from("!HHIIB", frame, 34)
    payload = struct.unpack_from("!H", frame, 16)[0] - 20 - (offset >> 4) * 4
    if (source, destination) == (port, 4008) and payload > 0:
        stamp = struct.unpack_from("!I", frame, 34 + 20 + 4)[0]
        numbers = (port, sequence + payload, acknowledgement, stamp)
segments.close()
print(*numbers, flush=True)
sys.stdin.readline()
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for network in range(6):
    for _ in range(20):
        try:
            plain.sendto(b"x", (f"10.97.{network}.9", 9000))
        except OSError:
            pass
print("sent", flush=True)
sys.stdin.readline()
