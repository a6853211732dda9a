"""Define what the ledger is asked to write: one business event with its transfers, as plain immutable data."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, TypeAlias

import msgspec

from accounting.chart import terms_of
from accounting.errors import AmountInvalid, PostingDenied, PostingInvalid
from accounting.money import MAX_EVENT_NANO, MAX_TOKENS

Phase = Literal["single", "pending", "post", "void"]
EventKind = Literal[
    "credit",
    "hold",
    "lease",
    "capture",
    "late",
    "owed",
    "release",
    "reap",
    "use",
    "uses",
    "topup",
    "stripe_fee",
    "topup_refund",
    "dispute",
    "payout",
    "bank_payout",
    "suspense",
    "pool",
    "promo",
    "expiry",
    "purchase",
    "draw",
    "sale",
    "mature",
    "reserve",
    "usage_refund",
    "correction",
    "goodwill",
    "settlement",
    "write_off",
    "invoice",
    "audit",
    "variance",
]
CountSource = Literal["tokenizer", "upstream", "characters", "estimate"]
"""The counting party: the engine or a pinned tokenizer, the backend, or the rule for text without a tokenizer (see
`accounting.metering.delivered` for both rules). "estimate" counts every event of a free stream as one token."""
Outcome = Literal["complete", "interrupted", "failed", "refused"]

FROM_CACHE = "cache"
"""The lane of answers from the cache: the tokens are those of an earlier answer."""
MAX_TEXT = 512
"""The longest text, in characters, that an event or a usage row keeps: a key, a model name, a reference."""
MAX_LEGS = 64
MAX_USAGES = 1000
"""The most usage rows that one event writes."""
HOLD_GRACE_NS = 60 * 10**9
"""A hold is kept this long after its request's deadline, in nanoseconds."""
_MAX_TIME = 2**62
"""The longest time in any unit here: half of what the column can hold."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One transfer of `amount_nano` from the debited account to the credited one, in the accounts' unit.

    A `pending` leg only reserves. A later `post` (of at most the same amount) or `void` names it by `pending_seq`
    and moves between the same two accounts. It resolves the whole pending transfer: the amount that a post leaves
    is free again.

    Raises:
        AccountUnknown: the chart of accounts does not have a code.
        AmountInvalid: the amount is no int (a bool is none), exceeds `MAX_EVENT_NANO`, or is below one unit (below
            zero if the leg resolves); or no column can hold a number or time.
        PostingInvalid: the accounts have different currencies, or a field of the phase is missing: `pending_seq`
            for a resolving leg, `expires_ns` for a pending one.
    """

    debit: str
    credit: str
    amount_nano: int
    phase: Phase = "single"
    pending_seq: int | None = None
    expires_ns: int | None = None

    def __post_init__(self) -> None:
        resolves = self.phase in ("post", "void")
        _check_numbers(self.amount_nano, least=0 if resolves else 1, most=MAX_EVENT_NANO)
        _check_numbers(*(n for n in (self.pending_seq, self.expires_ns) if n is not None), most=_MAX_TIME)
        if terms_of(self.debit).currency != terms_of(self.credit).currency or self.debit == self.credit:
            raise PostingInvalid(f"nothing can move from {self.debit} to {self.credit}")
        expires = self.phase == "pending"
        if resolves != (self.pending_seq is not None) or expires != (self.expires_ns is not None):
            raise PostingInvalid(f"a {self.phase} transfer lacks its field or has one of another phase")


class UsageRecord(msgspec.Struct, frozen=True, gc=False):
    """The usage and cost of one request. Written once, in the transaction of the event that ends the request.

    `charge_nano` is what the caller pays and `cost_nano` what the provider bills, in nano-USD. `compute_nano` is
    the own machines' cost in billionths of a compute unit. `cached_tokens` are part of `prompt_tokens`.
    `served_model` is the model that answered, if it differs from the requested one because of an alias or a
    fallback. `reasoning_tokens` and `tool_tokens` are part of `completion_tokens`, as far as the backend reports
    them. `price_id` is the version of the price behind the charge (`accounting.metering.versions`).

    Raises:
        AmountInvalid: a number is no int, is negative, or exceeds what a request can have.
        PostingInvalid: a text cannot be stored, as in `Posting`.
    """

    request_id: str
    user_id: str
    department: str
    key_id: str
    model: str
    lane: str
    provider: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    count_source: CountSource
    outcome: Outcome
    started_ns: int
    duration_ms: int
    ttft_ms: int | None = None
    charge_nano: int = 0
    cost_nano: int = 0
    compute_nano: int = 0
    served_model: str | None = None
    reasoning_tokens: int = 0
    tool_tokens: int = 0
    price_id: str | None = None

    def __post_init__(self) -> None:
        counts, parts, amounts = _counts_of(self), _parts_of(self), _amounts_of(self)
        times = (self.started_ns, self.duration_ms, 0 if self.ttft_ms is None else self.ttft_ms)
        numbers = counts + parts + amounts + times
        # All at once, because this runs for every request; only a wrong number is looked for one by one.
        if (
            set(map(type, numbers)) != _ONLY_INTEGERS
            or min(numbers) < 0
            or max(counts) > MAX_TOKENS
            or max(parts) > self.completion_tokens
            or max(amounts) > MAX_EVENT_NANO
            or max(times) > _MAX_TIME
        ):
            _check_numbers(*counts, most=MAX_TOKENS)
            _check_numbers(*parts, most=self.completion_tokens)
            _check_numbers(*amounts, most=MAX_EVENT_NANO)
            _check_numbers(*times, most=_MAX_TIME)
        _check_texts(*_texts_of(self), self.served_model or "", self.price_id or "")


@dataclass(frozen=True, slots=True)
class Posting:
    """One event to book. The originator chooses `idem_key` once and sends it with every retry.

    `ref` names the subject of the event (a request id, an outside payment). `meta` keeps its explanation as text.
    The legs are booked in their order, all or none, together with the usage rows of every request that the event
    ends.

    Raises:
        PostingInvalid: there are more than `MAX_LEGS` legs or `MAX_USAGES` usage rows, or a text is longer than
            `MAX_TEXT` characters or contains a zero byte or half a surrogate pair.
    """

    idem_key: str
    kind: EventKind
    ref: str
    legs: tuple[Leg, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)
    usages: tuple[UsageRecord, ...] = ()

    def __post_init__(self) -> None:
        if len(self.legs) > MAX_LEGS or len(self.usages) > MAX_USAGES:
            raise PostingInvalid(f"an event has at most {MAX_LEGS} legs and {MAX_USAGES} usage rows")
        _check_texts(self.idem_key, self.ref, *self.meta, *self.meta.values())


@dataclass(frozen=True, slots=True)
class Posted:
    """The ledger's answer: the event's number and its transfers' numbers, in the order of the legs.

    `replayed` tells that the event was already booked, under the same key and from the same request.
    """

    event_seq: int
    transfer_seqs: tuple[int, ...]
    replayed: bool = False


Answer: TypeAlias = Posted | PostingDenied

HASHED_USAGE = (
    "request_id",
    "user_id",
    "department",
    "key_id",
    "model",
    "lane",
    "provider",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "charge_nano",
    "cost_nano",
    "compute_nano",
    "outcome",
    "reasoning_tokens",
    "tool_tokens",
)
"""The fields of a usage record that the request hash covers, in this order."""

USAGES_ORDERED = b"\1"
"""Ends the request hash of several usages. Older versions hashed them in an order that no table keeps."""

_LATER_FIELDS = 2
_ONLY_INTEGERS = {int}
_usage_content = attrgetter(*HASHED_USAGE)
# Reading several fields at once takes a third of the time.
_counts_of = attrgetter("prompt_tokens", "cached_tokens", "completion_tokens")
_parts_of = attrgetter("reasoning_tokens", "tool_tokens")
_amounts_of = attrgetter("charge_nano", "cost_nano", "compute_nano")
_texts_of = attrgetter("request_id", "user_id", "department", "key_id", "model", "lane", "provider")


def _check_numbers(*numbers: int, least: int = 0, most: int) -> None:
    for number in numbers:
        if type(number) is not int or not least <= number <= most:
            raise AmountInvalid(f"{number!r} is not a whole number from {least} to {most}")


def _check_texts(*texts: str) -> None:
    together = "".join(texts)
    if len(together) <= MAX_TEXT and together.isascii() and "\0" not in together:
        return
    for text in texts:
        if len(text) > MAX_TEXT or not _is_storable(text):
            raise PostingInvalid(f"a text that begins with {text[:40]!r} cannot be stored")


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def request_hash(posting: Posting) -> bytes:
    """Return the SHA-256 that tells a retry from another request under the same key.

    It covers what is booked and why: kind, reference, legs, meta, and the amounts and counts of the usage records.
    It leaves out times (a hold's expiry, a request's duration), which a retry may not repeat to the nanosecond.
    The layout is listed field by field, so a field added to a dataclass later does not turn old retries into
    conflicts.
    """
    legs = [(leg.debit, leg.credit, leg.amount_nano, leg.phase, leg.pending_seq) for leg in posting.legs]
    return content_hash(posting.kind, posting.ref, legs, posting.meta, [_usage_content(u) for u in posting.usages])


def content_hash(
    kind: str,
    ref: str,
    legs: Sequence[tuple[str | int | None, ...]],
    meta: Mapping[str, str],
    usages: Sequence[tuple[str | int, ...]],
) -> bytes:
    """Return the `request_hash` of this content.

    `legs` have debit, credit, amount, phase and pending_seq. `usages` have the values of `HASHED_USAGE`. The hash
    of several usages covers them in the order of their request ids and ends with `USAGES_ORDERED`.
    """
    contents = [_without_zeros(usage) for usage in usages]
    # Keep the layout from when an event ended at most one request.
    covered = sorted(contents) if len(contents) > 1 else contents[0] if contents else None
    content = (kind, ref, legs, sorted(meta.items()), covered)
    digest = hashlib.sha256(msgspec.msgpack.encode(content)).digest()
    return digest + USAGES_ORDERED if len(contents) > 1 else digest


def _without_zeros(usage: tuple[str | int, ...]) -> tuple[str | int, ...]:
    # These fields were added later. Leave zeros out, so that hashes of older events stay the same.
    return usage if any(usage[-_LATER_FIELDS:]) else usage[:-_LATER_FIELDS]


def meta_text(meta: Mapping[str, str]) -> str:
    """Return meta as one JSON text for the ledger: sorted, without spaces."""
    return json.dumps(dict(meta), sort_keys=True, separators=(",", ":"), ensure_ascii=False) if meta else "{}"
