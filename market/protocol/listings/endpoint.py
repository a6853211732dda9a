"""Check which addresses a listing may name: only public names over TLS, so that no buyer calls its own network.

This checks only the text. Code that connects must also check the addresses that the name resolves to.
"""

import ipaddress
import re

from market.errors import ListingInvalid

URL_MAX = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PRIVATE = (
    "localhost",
    "local",
    "internal",
    "lan",
    "home",
    "arpa",
    "intranet",
    "corp",
    "onion",
    "test",
    "invalid",
)


def check_endpoint(url: str, *, allows_loopback: bool = False) -> None:
    """Check that an address is `https://name`, with a public form of name.

    With `allows_loopback`, `http://127.0.0.1:port` is also valid, for trials on one machine.

    Raises:
        ListingInvalid: it is not valid.
    """
    if allows_loopback and re.fullmatch(r"http://127\.0\.0\.1:[0-9]{1,5}", url):
        return
    host = url.removeprefix("https://")
    if host == url or len(url) > URL_MAX:
        raise ListingInvalid("endpoint", "must be https:// and a name, with nothing after it")
    labels = host.split(".")
    if len(labels) < 2 or labels[-1] in _PRIVATE or not all(map(_LABEL.fullmatch, labels)):
        raise ListingInvalid("endpoint", "must be a public name in lower case")
    if _is_address(host):
        raise ListingInvalid("endpoint", "must be a name, not an address")


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address, short forms like 127.1 included, which some resolvers accept."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.rpartition(".")[2].isdigit() or host.rpartition(".")[2].startswith("0x")
    return True
