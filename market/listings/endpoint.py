"""Which addresses a listing may name: public names over TLS: no listing makes a buyer call its own network.

This looks at the text alone. Whoever connects must look at the addresses that the name stands for as well.
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
    """Check that an address is `https://name`, of a name that is public by its form.

    `allows_loopback` also takes `http://127.0.0.1:port`: for trying things out on one machine.

    Raises:
        ListingInvalid: it is not.
    """
    if allows_loopback and re.fullmatch(r"http://127\.0\.0\.1:[0-9]{1,5}", url):
        return
    host = url.removeprefix("https://")
    if host == url or len(url) > URL_MAX:
        raise ListingInvalid("endpoint", "is not https:// and a name, with nothing after it")
    labels = host.split(".")
    if len(labels) < 2 or labels[-1] in _PRIVATE or not all(map(_LABEL.fullmatch, labels)):
        raise ListingInvalid("endpoint", "is not a public name in lower case")
    if _is_address(host):
        raise ListingInvalid("endpoint", "is an address, where a name is expected")


def _is_address(host: str) -> bool:
    """Also where it is written short, as in 127.1, which some resolvers take."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.rpartition(".")[2].isdigit() or host.rpartition(".")[2].startswith("0x")
    return True
