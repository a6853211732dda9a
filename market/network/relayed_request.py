"""Messages between a marketplace and a seller without a tunnel: one request, and the parts of its answer.

Both are MessagePack maps. Each side checks the path itself: buyers may ask sellers for a short list of paths,
whichever party relays it.
"""

import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from market.errors import JobInvalid
from market.protocol.channels.job import JOB_BYTES_MAX, RECEIPTS_BYTES_MAX

DOMAIN = b"millrace relay\n"
"""The prefix of what a seller signs to ask for work; the marketplace's identity and nonce follow."""
PART_BYTES_MAX = 2**17
PART_PACKED_BYTES_MAX = PART_BYTES_MAX + 2**12
RELAYED_PACKED_BYTES_MAX = JOB_BYTES_MAX + 2**12
POLL_S = 25.0
"""Seconds that the marketplace waits for work before it answers that there is none."""

_GET = re.compile(r"/market/v1/challenge/[0-9a-f]{64}")
_POST = {"/market/v1/jobs": JOB_BYTES_MAX, "/market/v1/receipts": RECEIPTS_BYTES_MAX}

Method: TypeAlias = Literal["GET", "POST"]
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class RelayedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A buyer's request, as it arrived. The marketplace cannot read its sealed part."""

    id: Id
    method: Method
    path: Annotated[str, Meta(max_length=200)]
    body: Annotated[bytes, Meta(max_length=JOB_BYTES_MAX)] = b""


class AnswerPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The next bytes of an answer. Part 0 has status and headers; nothing follows the last part."""

    number: Annotated[int, Meta(ge=0, le=2**31)]
    data: Annotated[bytes, Meta(max_length=PART_BYTES_MAX)] = b""
    is_last: bool = False
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    content_type: Annotated[str, Meta(max_length=100, pattern=r"^[a-z/\-;=. 0-9]*\Z")] = ""
    retry_after_s: Annotated[int, Meta(ge=0, le=86_400)] = 0


def body_bytes_max(method: str, path: str) -> int | None:
    """Return the maximum body size of such a request; None if buyers may not send it to sellers."""
    if method == "GET" and _GET.fullmatch(path):
        return 0
    return _POST.get(path) if method == "POST" else None


def read_relayed_request(packed: bytes) -> RelayedRequest:
    """Read what a marketplace sent.

    Raises:
        JobInvalid: buyers may not ask sellers for it, or it cannot be parsed.
    """
    try:
        relayed = msgspec.msgpack.decode(packed, type=RelayedRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JobInvalid("", f"is invalid: {str(error)[:200]}") from None
    longest_bytes = body_bytes_max(relayed.method, relayed.path)
    if longest_bytes is None:
        raise JobInvalid("path", "is not one that buyers may use")
    if len(relayed.body) > longest_bytes:
        raise JobInvalid("body", f"has {len(relayed.body)} bytes, but at most {longest_bytes} are allowed")
    return relayed


def read_part(packed: bytes) -> AnswerPart:
    """Read what a seller sent.

    Raises:
        JobInvalid: it is not a part of an answer.
    """
    try:
        return msgspec.msgpack.decode(packed, type=AnswerPart)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JobInvalid("part", f"is invalid: {str(error)[:200]}") from None
