"""Addresses that are never contacted on behalf of a URL: link-local ones, where clouds hand out credentials.

In: a host name, in any spelling a resolver takes. Out: the addresses to connect to, all of them harmless. The
check is made on what the resolver returns and the connection goes to that very address, so neither decimal,
octal or IPv6-mapped spellings nor a name that resolves differently the second time get past it. Loopback is
allowed.
"""

import ipaddress
import socket

from outlast.errors import StorageError

_METADATA = tuple(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
)
CONSENT = "OUTLAST_PRIVATE_HOSTS"
"""The environment variable that names hosts of private addresses at which data sets may have their files."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def resolve(host: str, port: int, *, public_only: bool = False) -> list[tuple[socket.AddressFamily, str]]:
    """Return the address families and addresses of a host.

    Args:
        public_only: of a host that data name, not a person: nothing inside this machine or its networks.

    Raises:
        StorageError: one of them is link-local, multicast or a cloud's metadata server, or not public.
        OSError: the name cannot be resolved.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    for _, address in addresses:
        if is_forbidden(address):
            raise StorageError(
                f"The host {host!r} stands for {address}, an address that is never contacted.",
                expected="a host outside the link-local and metadata ranges",
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
    inner = _inner(ip)
    return inner.is_global if inner else ip.is_global


def _inner(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address inside an IPv6 address, None where there is none."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return None
    nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
    return ip.ipv4_mapped or ip.sixtofour or nat64


def is_forbidden(address: str) -> bool:
    """Whether a numeric address, or the IPv4 address inside it, must not be contacted."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if inner := _inner(ip):
        return is_forbidden(str(inner))
    return ip.is_link_local or ip.is_multicast or ip in _METADATA
