"""Encode what a buyer sends a seller for one request, and the pieces of the answer, without any I/O.

A job is a map in MessagePack. Its records are as they were signed, and each is still to be verified.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from market.errors import JobInvalid
from market.protocol.records.envelope import RECORD_BYTES_MAX
from market.protocol.sealing.request import SEALED_BYTES_MAX
from market.protocol.sealing.stream import PIECE_BYTES_MAX

BACKING_MAX = 2
STATEMENTS_MAX = 64
RECEIPTS_MAX = 32
JOB_BYTES_MAX = SEALED_BYTES_MAX + (BACKING_MAX + STATEMENTS_MAX + RECEIPTS_MAX) * 2**12
"""More than any job with records of usual size needs. Do not read beyond this."""
RECEIPTS_BYTES_MAX = 2**19
MESSAGE_MAX = 500
DEPTH_MAX = 64
"""Deepest nesting of a request's values."""

Kind = Literal["chat", "completion"]
Code = Literal[
    "spent",
    "busy",
    "unpaid",
    "low",
    "prices",
    "request",
    "limit",
    "ended",
    "superseded",
    "full",
    "malformed",
    "content",
    "not_idle",
    "draining",
    "preempted",
    "failed",
    "too_long",
    "refused",
]
"""The reason why a seller does not answer, or stops. The first eight are those of `admission.Reason`."""

RawRecord = Annotated[bytes, Meta(min_length=2, max_length=RECORD_BYTES_MAX)]
_Records = Annotated[list[RawRecord], Meta(max_length=RECEIPTS_MAX)]


class MarketJob(Struct, frozen=True, forbid_unknown_fields=True):
    """One request. The voucher is its signature: it names the sealed body, the listing, the prices, the ceiling.

    `backing` is the marketplace's allocation, or the two records of a credit line. `statements` are those of the
    buyer's pseudonym, needed only if it has any. `receipts` are the buyer's signed receipts of earlier requests on this
    channel, with their vouchers.
    """

    voucher: RawRecord
    backing: Annotated[list[RawRecord], Meta(min_length=1, max_length=BACKING_MAX)]
    sealed: Annotated[bytes, Meta(min_length=1, max_length=SEALED_BYTES_MAX)]
    statements: Annotated[list[RawRecord], Meta(max_length=STATEMENTS_MAX)] = []
    receipts: Annotated[list[RawRecord], Meta(max_length=RECEIPTS_MAX)] = []


class JobBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the sealed body: OpenAI's request body, without the caller's identity."""

    kind: Kind
    request: dict[str, Any]


class Cut(Struct, frozen=True):
    """The reason why an answer ended early. The final receipt follows it."""

    code: Code
    message: Annotated[str, Meta(max_length=MESSAGE_MAX)] = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One sealed piece of an answer: `d` is a chunk of OpenAI's stream, `r` a receipt, `e` a cut."""

    kind: Literal["d", "r", "e"]
    content: bytes


def pack_job(job: MarketJob) -> bytes:
    """Return the encoded job.

    Raises:
        JobInvalid: it is larger than a seller would read.
    """
    packed = msgspec.msgpack.encode(job)
    if len(packed) > JOB_BYTES_MAX:
        raise JobInvalid("", f"has {len(packed)} bytes, more than the maximum of {JOB_BYTES_MAX}")
    return packed


def read_job(packed: bytes) -> MarketJob:
    """Read a job from an untrusted source. Its records are still to be verified.

    Raises:
        JobInvalid: it is not a job; the error names the field.
    """
    if len(packed) > JOB_BYTES_MAX:
        raise JobInvalid("", f"has {len(packed)} bytes, more than the maximum of {JOB_BYTES_MAX}")
    try:
        return msgspec.msgpack.decode(packed, type=MarketJob)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None


def pack_job_body(job_body: JobBody) -> bytes:
    return msgspec.json.encode(job_body)


def read_job_body(body: bytes) -> JobBody:
    """Read the content of a sealed body.

    Raises:
        JobInvalid: it is not a request; the error names the field.
    """
    try:
        job_body = msgspec.json.decode(body, type=JobBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None
    _check_depth(job_body.request)
    return job_body


def _check_depth(request: dict[str, Any]) -> None:
    """Check the depth, because code that encodes or searches a request may be recursive."""
    level: list[Any] = [request]
    for _ in range(DEPTH_MAX):
        level = [inner for each in level for inner in _within(each)]
        if not level:
            return
    raise JobInvalid("request", f"is nested deeper than {DEPTH_MAX} levels")


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def pack_receipts(records: list[bytes]) -> bytes:
    """Encode the buyer's signed receipts and their vouchers, which are sent after an answer."""
    return msgspec.msgpack.encode(records)


def read_receipts(packed: bytes) -> list[bytes]:
    """Read raw records from the encoding of `pack_receipts`.

    Raises:
        JobInvalid: they are invalid, or too many.
    """
    if len(packed) > RECEIPTS_BYTES_MAX:
        raise JobInvalid("", f"has {len(packed)} bytes, more than the maximum of {RECEIPTS_BYTES_MAX}")
    try:
        records: list[bytes] = msgspec.msgpack.decode(packed, type=_Records)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None
    return records


def pack_piece(piece: Piece) -> bytes:
    """Return the piece's plain text for sealing. The caller keeps it below the size limit of a seal."""
    assert len(piece.content) < PIECE_BYTES_MAX, "a piece has a limit"
    return piece.kind.encode() + piece.content


def read_piece(plain: bytes) -> Piece:
    """Read an opened piece.

    Raises:
        JobInvalid: it is of no known kind.
    """
    for kind in ("d", "r", "e"):
        if plain[:1] == kind.encode():
            return Piece(kind, plain[1:])
    raise JobInvalid("piece", "is neither a chunk nor a receipt nor a cut")


def read_cut(piece: Piece) -> Cut:
    """Return why the answer was cut short.

    Raises:
        JobInvalid: the seller's reason cannot be read.
    """
    try:
        return msgspec.json.decode(piece.content, type=Cut)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None


def _invalid(error: Exception) -> JobInvalid:
    problem, _, place = str(error).partition(" - at `$")
    return JobInvalid(place.rstrip("`").lstrip("."), f"is wrong: {problem[:200]}")
