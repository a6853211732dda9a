"""Sealed requests, kept in bounded memory for as long as their buyers may still deny them.

A buyer who took an answer may sign for a smaller prompt than it sent. The sealed request, which its voucher names
by hash, and the key that opens it prove the prompt. We forget both once the buyer has signed for it. They never
reach a disk, so a listing that promises zero retention stays true; a restart forgets all of them.
"""

from collections import OrderedDict
from dataclasses import dataclass

from market.protocol.audits.prompts import Shown
from market.protocol.channels.channel import Channel, due
from market.protocol.channels.statements import Delivery

BYTES_MAX = 2**28
CHANNEL_BYTES_MAX = 2**25
"""Limit per channel: twice the largest request. Beyond either limit, the oldest are forgotten."""
ROOM_BYTES = 2**20
"""Part of a channel's limit that is left for requests already being answered."""
_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Proof:
    """The newest request of a lane; `receipt` is the digest of our final receipt for it."""

    channel: str
    lane: int
    seq: int
    receipt: str
    shown: Shown

    @classmethod
    def of(cls, delivery: Delivery, shown: Shown) -> "Proof":
        receipt = delivery.receipt
        return cls(receipt.channel, receipt.lane, receipt.seq, delivery.digest, shown)

    @property
    def size_bytes(self) -> int:
        return len(self.shown.sealed) + _OVERHEAD_BYTES


class Proofs:
    """At most one proof per lane, the oldest first."""

    def __init__(self, bytes_max: int = BYTES_MAX, channel_bytes_max: int = CHANNEL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._channel_bytes_max = channel_bytes_max
        self._oldest_first: OrderedDict[tuple[str, int], Proof] = OrderedDict()
        self._lanes: dict[str, dict[int, Proof]] = {}
        self.size_bytes = 0

    @property
    def channels(self) -> list[str]:
        """Return channels that have proofs."""
        return list(self._lanes)

    def of(self, channel: str) -> list[Proof]:
        return list(self._lanes.get(channel, {}).values())

    def has_room(self, channel: str, lane: int, sealed_bytes: int) -> bool:
        """Return whether a request fits without dropping another proof of its channel that may be needed."""
        others = (each.size_bytes for each in self.of(channel) if each.lane != lane)
        return sum(others) + sealed_bytes <= self._channel_bytes_max - ROOM_BYTES

    def keep(self, proof: Proof) -> None:
        """Store a proof in place of the lane's earlier one."""
        self.forget(proof.channel, proof.lane)
        self._oldest_first[proof.channel, proof.lane] = proof
        self._lanes.setdefault(proof.channel, {})[proof.lane] = proof
        self.size_bytes += proof.size_bytes
        kept = self.of(proof.channel)
        beyond_bytes = sum(each.size_bytes for each in kept) - self._channel_bytes_max
        for each in kept:
            if beyond_bytes <= 0:
                break
            beyond_bytes -= each.size_bytes
            self._drop(each)
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._oldest_first.values())))

    def forget(self, channel: str, lane: int) -> None:
        if (proof := self._lanes.get(channel, {}).get(lane)) is not None:
            self._drop(proof)

    def review(self, channel: Channel) -> None:
        """Forget proofs the buyer has signed for by now, and those superseded by a newer request on their lane."""
        for proof in self.of(channel.terms.channel):
            lane = channel.lanes.get(proof.lane)
            if lane is None or lane.claim is None:
                continue
            is_open = due(lane).claimed_nano or due(lane).disputed_nano
            if not is_open or lane.claim.receipt.seq > proof.seq:
                self._drop(proof)

    def _drop(self, proof: Proof) -> None:
        del self._oldest_first[proof.channel, proof.lane]
        lanes = self._lanes[proof.channel]
        del lanes[proof.lane]
        if not lanes:
            del self._lanes[proof.channel]
        self.size_bytes -= proof.size_bytes
