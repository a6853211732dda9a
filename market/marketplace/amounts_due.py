"""Compute what a channel is worth at the marketplace, and when. Pure, from what is known of it and since when."""

from collections.abc import Mapping
from dataclasses import dataclass

from market.marketplace.terms import ANSWER_MS
from market.protocol.channels.channel import Channel, Lane, due, settle

JOB_NANO_MIN = 100_000
"""A ten-thousandth of a USD: requests paid with less do not count in a track record."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A receipt that the buyer has not answered, and when the marketplace first saw it, in ms since 1970."""

    digest: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The sum of a lane with the request `seq`, after a dispute's decision or an expired deadline."""

    seq: int
    amount_nano: int


@dataclass(frozen=True, slots=True)
class Reckoning:
    """The amounts of an allocation that are due now, and those that are not.

    `due_nano` is what the buyer has signed or not answered in time. `look_ms` is when the next open amount becomes
    due by itself, or None. `jobs` is the number of requests, where each is paid with `JOB_NANO_MIN` or more,
    because the number rests on the signer's word. `decided` is each lane's lowest sum from now on: an expired
    deadline is final too.
    """

    confirmed_nano: int
    claimed_nano: int
    disputed_nano: int
    due_nano: int
    seen: Mapping[int, Seen]
    look_ms: int | None
    jobs: int
    decided: Mapping[int, Decided]


def reckon(
    channel: Channel, limit_nano: int, seen: Mapping[int, Seen], decided: Mapping[int, Decided], now_ms: int
) -> Reckoning:
    """Compute what a channel is worth. `seen` comes from an earlier call; a receipt that is not in it is new.

    `decided` has the marketplace's decisions by lane; a later signature of the buyer is never less.
    """
    whole = settle(channel, limit_nano)
    claims = {n: lane.claim for n, lane in channel.lanes.items() if lane.claim and due(lane).claimed_nano}
    still = {n: _seen(seen.get(n), claim.digest, now_ms) for n, claim in claims.items()}
    ripe = {n for n, each in still.items() if now_ms >= each.since_ms + ANSWER_MS}
    sums = {n: _sum_nano(lane, decided.get(n), is_ripe=n in ripe) for n, lane in channel.lanes.items()}
    due_nano = min(sum(sums.values()), limit_nano)
    jobs = sum(_jobs(lane, sums[n], is_ripe=n in ripe) for n, lane in channel.lanes.items())
    return Reckoning(
        whole.confirmed_nano,
        whole.claimed_nano,
        whole.disputed_nano,
        due_nano,
        still,
        min((still[n].since_ms + ANSWER_MS for n in still.keys() - ripe), default=None),
        min(jobs, due_nano // JOB_NANO_MIN),
        {**decided, **{n: Decided(claims[n].receipt.seq, sums[n]) for n in sorted(ripe)}},
    )


def _sum_nano(lane: Lane, decided: Decided | None, *, is_ripe: bool) -> int:
    """Return the sum of a lane by now. A decision is its minimum, and does not hide later signatures."""
    found = due(lane)
    signed_nano = found.confirmed_nano + (found.claimed_nano if is_ripe else 0)
    return max(signed_nano, decided.amount_nano if decided else 0)


def _seen(before: Seen | None, digest: str, now_ms: int) -> Seen:
    return before if before and before.digest == digest else Seen(digest, now_ms)


def _jobs(lane: Lane, paid_nano: int, *, is_ripe: bool) -> int:
    """Return the number of paid requests of a lane, according to its newest statements."""
    settled_seq = lane.assent.settled_seq if lane.assent and lane.assent.amount_nano else 0
    newest_seq = max(settled_seq, lane.claim.receipt.seq) if is_ripe and lane.claim else settled_seq
    return min(newest_seq, paid_nano // JOB_NANO_MIN)
