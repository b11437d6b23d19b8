"""Reads the processes of packets by the published layout: `layout.py FILE` prints a line of JSON for each packet.

It shares no code with trawl. Wireshark defines option 8 of a packet and the blocks: a custom block with enterprise
number 32622 has little-endian contents in files of either order. Of several descriptions of a process, the latest that
began before the packet holds, else the earliest.
"""

import json
import struct
import sys


def options(data, order):
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == 0:
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + (length + 3) // 4 * 4


def blocks(data):
    at, order = 0, "<"
    while at < len(data):
        if data[at : at + 4] == b"\n\r\r\n":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
        kind, length = struct.unpack_from(order + "II", data, at)
        assert struct.unpack_from(order + "I", data, at + length - 4)[0] == length
        yield kind, data[at + 8 : at + length - 4], order
        at += length


def process(body, order):
    """Returns the number and the description, if the block is one of a process."""
    number, kind, length = struct.unpack(order + "I", body[:4]) + struct.unpack("<II", body[4:12])
    if number != 32622 or kind != 3:
        return None
    fields = dict(options(body[16 : 12 + length], "<"))
    word = lambda code: struct.unpack("<I", fields[code])[0] if code in fields else None
    text = lambda code: fields[code].decode() if code in fields else None
    return struct.unpack("<I", body[12:16])[0], {
        "name": text(2),
        "path": text(3),
        "command": text(4),
        "parent": word(5),
        "user_id": word(6),
        "user": text(7),
        "start": struct.unpack("<Q", fields[9])[0] if 9 in fields else 0,
    }


def packet(body, order, known):
    high, low, captured = struct.unpack(order + "4xIII4x", body[:20])
    time = high << 32 | low
    found = dict(options(body[20 + (captured + 3) // 4 * 4 :], order)).get(8)
    if found is None:
        return {"id": None}
    number, thread = struct.unpack(order + "II", found)
    described = sorted(known.get(number, []), key=lambda one: one["start"])
    before = [one for one in described if one["start"] <= time]
    best = before[-1:] or described[:1]
    return {"id": number, "thread": thread or None, **(best[0] if best else {})}


known = {}
with open(sys.argv[1], "rb") as file:
    for kind, body, order in blocks(file.read()):
        if kind == 0x0BAD:
            found = process(body, order)
            if found:
                known.setdefault(found[0], []).append(found[1])
        elif kind == 6:
            print(json.dumps(packet(body, order, known)))
