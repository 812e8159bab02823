"""Ends connections of this process that belong to a server which gives no handle to them (gRPC's, under Flight).

A socket is found by its addresses among the process's open descriptors and shut down for both directions; whoever reads
from it then learns that the peer has gone. Where descriptors cannot be listed (Windows) nothing happens.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

_DESCRIPTORS = Path("/dev/fd")


def sever(port: int, peer: str | None = None) -> int:
    """Ends the connections to our `port`, or that of one `peer` (`ipv4:127.0.0.1:5000`, as gRPC says); how many."""
    wanted = None if peer is None else _place(unquote(peer).partition(":")[2])
    ended = 0
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208  names, not paths
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                own, other = connection.getsockname(), connection.getpeername()
                if own[1] == port and wanted in (None, _place(f"{other[0]}:{other[1]}")):
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
    return ended


def _place(text: str) -> tuple[str, str]:
    """Host and port in one form: an IPv4 address that came over an IPv6 socket is the same one."""
    host, _, port = text.rpartition(":")
    with suppress(ValueError):
        address = ip_address(host.strip("[]"))
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return str(mapped or address), port
    return host, port
