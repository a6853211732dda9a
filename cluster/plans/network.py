"""The links between machines: the delay of a byte, and the bytes per second."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from cluster.trust.identity import NodeId


class Link(Struct, frozen=True, kw_only=True):
    """One direction between two machines. `delay_s` is one way: half of the median round trip."""

    delay_s: float
    jitter_s: float = 0.0
    bytes_per_s: float
    mtu_bytes: int = 1500
    is_measured: bool = True

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds from the first byte's departure to the last one's arrival."""
        return self.delay_s + size_bytes / self.bytes_per_s


# Gigabit Ethernet at home. Plans say for which links they had to assume it.
ASSUMED = Link(delay_s=0.00015, bytes_per_s=110e6, is_measured=False)
_DELAY_MAX_S = 10.0
_RATE_MIN = 1e3
_RATE_MAX = 1e12


@dataclass(frozen=True, slots=True)
class Network:
    """Links by (from, to). If only the opposite direction was measured, it stands for both."""

    links: Mapping[tuple[NodeId, NodeId], Link] = field(default_factory=dict)

    def link(self, sender: NodeId, receiver: NodeId) -> Link:
        """Return the link between two machines: measured, measured the other way round, or assumed."""
        return self.links.get((sender, receiver)) or self.links.get((receiver, sender)) or ASSUMED


def is_plausible(link: Link) -> bool:
    """Tell whether a peer's report can be used for plans; NaN cannot."""
    return (
        0 <= link.delay_s <= _DELAY_MAX_S
        and 0 <= link.jitter_s <= _DELAY_MAX_S
        and _RATE_MIN <= link.bytes_per_s <= _RATE_MAX
        and 0 < link.mtu_bytes <= 2**20
    )
