"""What a buyer sends a seller for one request, and what the pieces of the answer are: forms without any I/O.

A job is a map in MessagePack. Its records are as they were signed; nothing of them is believed for being in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from market.errors import JobInvalid
from market.records.envelope import RECORD_BYTES_MAX
from market.sealing.request import SEALED_BYTES_MAX
from market.sealing.stream import PIECE_BYTES_MAX

BACKING_MAX = 2
STATEMENTS_MAX = 64
RECEIPTS_MAX = 32
JOB_BYTES_MAX = SEALED_BYTES_MAX + (BACKING_MAX + STATEMENTS_MAX + RECEIPTS_MAX) * 2**12
"""More than any job needs whose records are of usual size; read no further than this."""
RECEIPTS_BYTES_MAX = 2**19
MESSAGE_MAX = 500
DEPTH_MAX = 64
"""A request's values lie in so many others at most."""

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
"""Why a seller does not answer, or stops: the first eight are those of `admission.Reason`."""

RawRecord = Annotated[bytes, Meta(min_length=2, max_length=RECORD_BYTES_MAX)]
_Records = Annotated[list[RawRecord], Meta(max_length=RECEIPTS_MAX)]


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    """One request. The voucher is its signature: it names the sealed body, the listing, the prices, the ceiling.

    `backing` is the house's allocation, or the two records of a credit line. `statements` are the buyer's own
    (its pseudonym's), needed only where it has any. `receipts` are receipts that the buyer signed for earlier
    requests of this channel, and the vouchers that these draw on.
    """

    voucher: RawRecord
    backing: Annotated[list[RawRecord], Meta(min_length=1, max_length=BACKING_MAX)]
    sealed: Annotated[bytes, Meta(min_length=1, max_length=SEALED_BYTES_MAX)]
    statements: Annotated[list[RawRecord], Meta(max_length=STATEMENTS_MAX)] = []
    receipts: Annotated[list[RawRecord], Meta(max_length=RECEIPTS_MAX)] = []


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """What is inside the seal: OpenAI's body of the request, without who asks."""

    kind: Kind
    request: dict[str, Any]


class Cut(Struct, frozen=True):
    """Why an answer ended before its end; the final receipt comes after it."""

    code: Code
    message: Annotated[str, Meta(max_length=MESSAGE_MAX)] = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one sealed piece of an answer says: `d` a chunk of OpenAI's stream, `r` a receipt, `e` a cut."""

    kind: Literal["d", "r", "e"]
    content: bytes


def pack_job(job: Job) -> bytes:
    """The job as it travels.

    Raises:
        JobInvalid: no seller would read it to its end.
    """
    packed = msgspec.msgpack.encode(job)
    if len(packed) > JOB_BYTES_MAX:
        raise JobInvalid("", f"has {len(packed)} bytes, and {JOB_BYTES_MAX} are the most")
    return packed


def read_job(packed: bytes) -> Job:
    """Read a job that came from anywhere. Its records are still to be opened.

    Raises:
        JobInvalid: it is none; the error names the field.
    """
    if len(packed) > JOB_BYTES_MAX:
        raise JobInvalid("", f"has {len(packed)} bytes, and {JOB_BYTES_MAX} are the most")
    try:
        return msgspec.msgpack.decode(packed, type=Job)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None


def pack_wanted(wanted: Wanted) -> bytes:
    return msgspec.json.encode(wanted)


def read_wanted(body: bytes) -> Wanted:
    """Read what was inside the seal.

    Raises:
        JobInvalid: it is no request; the error names the field.
    """
    try:
        wanted = msgspec.json.decode(body, type=Wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None
    _check_depth(wanted.request)
    return wanted


def _check_depth(request: dict[str, Any]) -> None:
    """Whoever writes it down again, or looks through it, may do so by recursion."""
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
    """Receipts that a buyer signed, and their vouchers, as they travel after an answer."""
    return msgspec.msgpack.encode(records)


def read_receipts(packed: bytes) -> list[bytes]:
    """Read raw records that came as `pack_receipts` wrote them.

    Raises:
        JobInvalid: they are none, or too many.
    """
    if len(packed) > RECEIPTS_BYTES_MAX:
        raise JobInvalid("", f"has {len(packed)} bytes, and {RECEIPTS_BYTES_MAX} are the most")
    try:
        records: list[bytes] = msgspec.msgpack.decode(packed, type=_Records)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None
    return records


def pack_piece(piece: Piece) -> bytes:
    """The piece's plain text, to be sealed; the caller keeps it within what a seal takes."""
    assert len(piece.content) < PIECE_BYTES_MAX, "a piece has a limit"
    return piece.kind.encode() + piece.content


def read_piece(plain: bytes) -> Piece:
    """Read a piece that was opened.

    Raises:
        JobInvalid: it is of no known kind.
    """
    for kind in ("d", "r", "e"):
        if plain[:1] == kind.encode():
            return Piece(kind, plain[1:])
    raise JobInvalid("piece", "is neither a chunk nor a receipt nor a cut")


def read_cut(piece: Piece) -> Cut:
    """Why the answer was cut short.

    Raises:
        JobInvalid: the seller did not say it in a way that can be read.
    """
    try:
        return msgspec.json.decode(piece.content, type=Cut)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None


def _invalid(error: Exception) -> JobInvalid:
    problem, _, place = str(error).partition(" - at `$")
    return JobInvalid(place.rstrip("`").lstrip("."), f"is wrong: {problem[:200]}")
