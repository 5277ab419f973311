"""Everything that leaves a network namespace over TCP: run inside it, `sniffer.py FOLDER`, until a signal ends it.

Writes FOLDER/FLOW with the payload of every connection, and "ready" to standard output once it listens.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
from pathlib import Path

OUTGOING, EVERYTHING, TCP, IPV4 = 4, 3, 6, 0x0800


def payload(packet: bytes) -> tuple[str, bytes] | None:
    """The connection of a packet and what it carries, if it is TCP over IPv4."""
    if len(packet) < 34 or struct.unpack("!H", packet[12:14])[0] != IPV4 or packet[23] != TCP:
        return None
    ip = packet[14:]
    words = (ip[0] & 15) * 4
    length = struct.unpack("!H", ip[2:4])[0] or len(ip)  # 0 where the card cuts it into packets later
    tcp = ip[words:length]
    source, target = struct.unpack("!HH", tcp[:4])
    return f"{source}-{target}", tcp[(tcp[12] >> 4) * 4 :]


def main(folder: Path) -> None:
    """Listens until it is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 2**20)
    flows = {}
    print("ready", flush=True)
    while True:
        packet, where = wire.recvfrom(1 << 17)
        found = payload(packet) if where[2] == OUTGOING else None
        if found is not None and found[1]:
            if found[0] not in flows:
                flows[found[0]] = (folder / found[0]).open("wb", buffering=0)
            flows[found[0]].write(found[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
