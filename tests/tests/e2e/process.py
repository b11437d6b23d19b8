"""Servers and clients whose processes are known: `process.py serve MODE ADDRESS PORT` and
`process.py ask ADDRESS PORT COUNT`.

Each client is a process of its own. It sends its number in a datagram and over a connection, whose answer is the number
of the server's process that handles it. `ask` prints a line for each: the two local ports and the two processes.
"""

import ctypes
import os
import signal
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
WORKERS = 4
AT_ONCE = 4


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listener(address, port, shared=False):
    listening = socket.socket(family(address), socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((address, port))
    listening.listen(128)
    return listening


def answer(connection):
    connection.recv(64)
    connection.sendall(b"%d\n" % os.getpid())
    connection.recv(64)
    connection.close()


def accept_without_address(listening):
    return socket.socket(fileno=LIBC.accept(listening.fileno(), None, None))


def child(work, *arguments):
    if os.fork() == 0:
        work(*arguments)
        os._exit(0)


def work_alone(accept, listening):
    while True:
        answer(accept(listening))


def accept(listening):
    return listening.accept()[0]


def fork_each(listening):
    while True:
        connection = accept(listening)
        child(answer, connection)
        connection.close()


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


def serve(mode, address, port):
    # Nobody waits for the children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    datagrams = socket.socket(family(address), socket.SOCK_DGRAM)
    datagrams.bind((address, port))
    if mode == "group":
        for _ in range(WORKERS):
            child(lambda: work_alone(accept, listener(address, port, True)))
    else:
        listening = listener(address, port)
        if mode == "prefork":
            for _ in range(WORKERS):
                child(work_alone, accept_without_address, listening)
        elif mode == "fork":
            child(fork_each, listening)
        elif mode == "pass":
            child(pass_each, listening)
        elif mode == "alone":
            child(work_alone, accept, listening)
        listening.close()
    print(os.getpid(), flush=True)
    while True:
        text, sender = datagrams.recvfrom(64)
        datagrams.sendto(text, sender)


def ask_once(address, port):
    own = b"%d\n" % os.getpid()
    datagram = socket.socket(family(address), socket.SOCK_DGRAM)
    datagram.connect((address, port))
    datagram.send(own)
    datagram.recv(64)
    connection = socket.create_connection((address, port))
    connection.sendall(own)
    worker = connection.recv(64).decode().strip()
    ports = (datagram.getsockname()[1], connection.getsockname()[1])
    connection.sendall(b"bye\n")
    connection.close()
    os.write(1, b"%d %d %d %s\n" % (*ports, os.getpid(), worker.encode()))


def ask(address, port, count):
    running = 0
    for _ in range(count):
        child(ask_once, address, port)
        running += 1
        if running == AT_ONCE:
            os.wait()
            running -= 1
    for _ in range(running):
        os.wait()


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
