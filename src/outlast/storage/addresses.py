"""Addresses that are never contacted on behalf of a URL: link-local ones, where clouds hand out credentials.

In: a host name, in any spelling a resolver takes. Out: the addresses to connect to, all of them harmless. The
check is made on what the resolver returns, so no spelling in decimal, octal or within an IPv6 address gets
past it; http(s) then connects to that very address, so neither does a name that resolves differently the
second time. Loopback is allowed.
"""

import ipaddress
import socket

from outlast.errors import StorageError

_METADATA = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.100.100.200",  # Alibaba; most others have theirs among the link-local ones
        "168.63.129.16",  # Azure's WireServer
        "192.0.0.192",  # Oracle
        "fd00:42::42",  # Scaleway
        "fd00:ec2::/32",  # Amazon: 254 metadata, 23 credentials of pods
        "fd20:ce::254",  # Google
    )
)
_METADATA_NAMES = (
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.azure.internal",
    "metadata.goog",
    "metadata.google.internal",
    "metadata.tencentyun.com",
)
"""Refused as names, for outside their cloud they cannot be resolved, and a proxy may resolve them."""
CONSENT = "OUTLAST_PRIVATE_HOSTS"
"""The environment variable that names hosts of private addresses at which data sets may have their files."""
_ENDS_WITH_IPV4 = tuple(
    ipaddress.ip_network(text)
    for text in (
        "64:ff9b::/96",
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
    )  # NAT64, compatible, mapped, SIIT
)
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")


_EXPECTED = "a host outside the link-local and metadata ranges"


def resolve(host: str, port: int, *, public_only: bool = False) -> list[tuple[socket.AddressFamily, str]]:
    """Return the address families and addresses of a host.

    Args:
        public_only: of a host that data name, not a person: nothing inside this machine or its networks.

    Raises:
        StorageError: one of them is link-local, multicast or a cloud's metadata server, or not public.
        OSError: the name cannot be resolved.
    """
    if host.rstrip(".").lower() in _METADATA_NAMES:
        raise StorageError(
            f"The host {host!r} is a cloud's metadata server, which is never contacted.", expected=_EXPECTED
        )
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    for _, address in addresses:
        if is_forbidden(address):
            raise StorageError(
                f"The host {host!r} stands for {address}, an address that is never contacted.",
                expected=_EXPECTED,
            )
        if public_only and not _is_public(address):
            raise StorageError(
                f"The data set has files on the host {host!r}, which stands for {address}, a private one.",
                expected="a public address, or the host of the manifest itself",
                remedy=f"if you trust the data set, set {CONSENT}={host}; or import it with --copy",
            )
    return addresses


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip in _LOCAL_NAT64:
        return False
    return all(inner.is_global for inner in _inner(ip) or [ip])


def _inner(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address may lead to."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return []
    number = int(ip)
    found = [ip.sixtofour] if ip.sixtofour else []
    if ip.teredo:
        found += ip.teredo
    if number > 1 and any(ip in network for network in _ENDS_WITH_IPV4):
        found.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if ip in _LOCAL_NAT64:
        # RFC 6052 has four layouts within it, in three of which bits 64 to 71 are left out.
        short = (number >> 64 << 56) | (number & (2**56 - 1))
        shifts = ((number, 0), (short, 40), (short, 32), (short, 24))
        found += [ipaddress.IPv4Address(bits >> shift & 0xFFFFFFFF) for bits, shift in shifts]
    return found


def is_forbidden(address: str) -> bool:
    """Whether a numeric address, or an IPv4 address inside it, must not be contacted."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if any(is_forbidden(str(inner)) for inner in _inner(ip)):
        return True
    return ip.is_link_local or ip.is_multicast or any(ip in network for network in _METADATA)
