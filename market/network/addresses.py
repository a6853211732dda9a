"""The check that an untrusted name resolves only to addresses of the public internet, in any notation.

IPv6 has many ways to write an IPv4 address; each is unwrapped or refused. Cloud providers serve metadata,
passwords included, at link-local and private addresses, and in one case at a public one.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

_GLOBAL_UNICAST = IPv6Network("2000::/3")
# DNS64 puts public IPv4 addresses behind this prefix, for machines that have only IPv6 (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")
_REFUSED = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own services, credentials among them
            "192.0.0.0/24",  # protocols; Oracle's metadata
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.175.48.0/24",
            "2001::/23",  # Teredo, ORCHID and other protocols
            "2001:db8::/32",
            "2002::/16",  # 6to4: any IPv4 address
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)


def is_public(text: str) -> bool:
    """Return whether an address, as a resolver writes it, is on the public internet; False if it is not an
    address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        inner = address.ipv4_mapped or _translated(address)
        if inner is None:
            return address in _GLOBAL_UNICAST and _is_plain(address)
        address = inner
    return _is_plain(address)


def _translated(address: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


def _is_plain(address: IPv4Address | IPv6Address) -> bool:
    is_special = address.is_multicast or address.is_reserved or any(address in each for each in _REFUSED)
    return address.is_global and not is_special
