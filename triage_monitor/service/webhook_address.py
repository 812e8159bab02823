"""Where a webhook may go: its host is resolved first, and the connection goes to an address that was looked at.

Looking and connecting use the same answer, so a name that resolves to something else a moment later gains nothing.
An IPv4 address mapped into IPv6 is judged by what is inside. Of other IPv6 addresses only global unicast (2000::/3) is
public, which leaves out site-local ones and every older way to carry IPv4 (compatible, translated, NAT64), and of that
neither 6to4 nor Teredo. Left out: a NAT64 under a network's own prefix, which nothing in an address tells.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address, IPv6Network, ip_address

_UNICAST = IPv6Network("2000::/3")
_DOCUMENTATION = IPv6Network("3fff::/20")  # RFC 9637; unknown to older Pythons


class ForbiddenAddress(Exception):
    """A host of which some address is not public."""


def is_public(address: str) -> bool:
    """False for private, loopback, link-local, shared, reserved, unspecified and multicast addresses."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if isinstance(ip, IPv6Address) and (ip not in _UNICAST or ip in _DOCUMENTATION or ip.sixtofour or ip.teredo):
        return False
    return ip.is_global and not ip.is_multicast


async def resolved(host: str, port: int, *, allow_private: bool) -> str:
    """The address to connect to. Raises OSError when there is none, ForbiddenAddress unless every one is public."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(item[4][0]) for item in found]
    if not addresses:
        raise OSError(f"{host} has no address")
    if not allow_private and not all(is_public(address) for address in addresses):
        raise ForbiddenAddress("the host has an address that is not public, and allow_private is off")
    return addresses[0]
