"""The messages with which two gateways exchange records: bounded on both sides, raw records as strings."""

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from market.errors import RecordInvalid
from market.protocol.records.envelope import RECORD_BYTES_MAX, Hex32
from market.protocol.records.exchange import BUCKETS

RECORDS_MAX = 500
BODY_BYTES_MAX = 2**21

Summary = Annotated[tuple[Hex32, ...], Meta(min_length=BUCKETS, max_length=BUCKETS)]
Raw = Annotated[str, Meta(max_length=RECORD_BYTES_MAX)]
Records = Annotated[tuple[Raw, ...], Meta(max_length=RECORDS_MAX)]


class GossipDigest(Struct, frozen=True):
    """The request of `/market/v1/gossip/digest`."""

    summary: Summary


class GossipDigestAnswer(Struct, frozen=True):
    summary: Summary
    records: Records = ()


class GossipRecords(Struct, frozen=True):
    """The request of `/market/v1/gossip/records`."""

    records: Records


class GossipRecordsAnswer(Struct, frozen=True):
    taken: int


S = TypeVar("S", bound=Struct)


def read(body: bytes, shape: type[S]) -> S:
    """Read a message of another gateway.

    Raises:
        RecordInvalid: it has another form, or is too large.
    """
    if len(body) > BODY_BYTES_MAX:
        raise RecordInvalid("", f"has {len(body)} bytes, but at most {BODY_BYTES_MAX} are allowed")
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordInvalid("", f"is not a gossip message: {str(error)[:100]}") from None


def written(records: Iterable[bytes]) -> tuple[str, ...]:
    """Return the first of these raw records, as many as one body holds."""
    fitting: list[str] = []
    left_bytes = BODY_BYTES_MAX - 2**16
    for record in records:
        # A quotation mark or backslash takes two bytes in a JSON string.
        left_bytes -= len(record) + record.count(b'"') + record.count(b"\\") + 3
        if left_bytes < 0 or len(fitting) == RECORDS_MAX:
            break
        fitting.append(record.decode())
    return tuple(fitting)


def raw_of(records: Iterable[str]) -> list[bytes]:
    """Return strings as bytes again; lone surrogates, which no record has, make invalid records."""
    return [each.encode(errors="replace") for each in records]
