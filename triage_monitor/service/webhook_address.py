"""Where a webhook may go: its host is resolved first, and the connection goes to an address that was looked at.

Looking and connecting use the same answer, so a name that resolves to something else a moment later gains nothing.
Tunnels that carry an IPv4 address inside an IPv6 one (mapped, 6to4, Teredo, NAT64) are judged by what is inside or
refused.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address, IPv6Network, ip_address

_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


class ForbiddenAddress(Exception):
    """A host of which some address is not public."""


def is_public(address: str) -> bool:
    """False for private, loopback, link-local, shared, reserved, unspecified and multicast addresses."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.sixtofour is not None or ip.teredo is not None or any(ip in network for network in _TRANSLATED):
            return False
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
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
