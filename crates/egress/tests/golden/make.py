#!/usr/bin/env python3
"""Writes cursor-1 as SPEC.md has it, without any code of the program."""
import struct

TABLE = []
for n in range(256):
    crc = n
    for _ in range(8):
        crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    TABLE.append(crc)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def record(sequence, flags, window, spans, counters):
    body = b"".join(struct.pack("<QQ", *span) for span in spans)
    body += b"".join(struct.pack("<Q", counter) for counter in counters)
    head = b"keelfwd\0" + struct.pack(
        "<IIQIIII", 1, 44 + len(body), sequence, flags, window, len(spans), len(counters)
    )
    return head + body + struct.pack("<I", crc32c(head + body))


OPEN = 2**64 - 1
first = record(1, 1, 10000, [(0, OPEN)], [0] * 13)
second = record(2, 0, 10000, [(5, 1000), (1200, OPEN)], [207, 200, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
torn = record(3, 0, 10000, [(7, OPEN)], [0] * 13)[:50]
open("cursor-1", "wb").write(first + second + torn)
