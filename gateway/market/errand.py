"""What travels between a house and a seller that no tunnel reaches: one request each, and the parts of its answer.

Both are maps in MessagePack. Both sides check the path by themselves: what a buyer may ask of a seller is a short
list, whoever carries it.
"""

import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from market.channels.job import JOB_BYTES_MAX, RECEIPTS_BYTES_MAX
from market.errors import JobInvalid

DOMAIN = b"millrace relay\n"
"""What a seller signs to ask for work: this, the house's identity and the house's nonce, one after the other."""
PART_BYTES_MAX = 2**17
PART_PACKED_BYTES_MAX = PART_BYTES_MAX + 2**12
ERRAND_PACKED_BYTES_MAX = JOB_BYTES_MAX + 2**12
POLL_S = 25.0
"""So long the house waits for work before it answers that there is none."""

_GET = re.compile(r"/market/v1/(challenge|tokenizers)/[0-9a-f]{64}")
_POST = {"/market/v1/jobs": JOB_BYTES_MAX, "/market/v1/receipts": RECEIPTS_BYTES_MAX}

Method: TypeAlias = Literal["GET", "POST"]
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Errand(Struct, frozen=True, forbid_unknown_fields=True):
    """A buyer's request, as it came. The house has not read what is sealed in it."""

    id: Id
    method: Method
    path: Annotated[str, Meta(max_length=200)]
    body: Annotated[bytes, Meta(max_length=JOB_BYTES_MAX)] = b""


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """The next bytes of an answer. Part 0 brings status and headers; after the last part nothing comes."""

    number: Annotated[int, Meta(ge=0, le=2**31)]
    data: Annotated[bytes, Meta(max_length=PART_BYTES_MAX)] = b""
    is_last: bool = False
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    content_type: Annotated[str, Meta(max_length=100, pattern=r"^[a-z/\-;=. 0-9]*\Z")] = ""
    retry_after_s: Annotated[int, Meta(ge=0, le=86_400)] = 0


def body_bytes_max(method: str, path: str) -> int | None:
    """How long the body of such a request may be; None where no buyer asks a seller such a thing."""
    if method == "GET" and _GET.fullmatch(path):
        return 0
    return _POST.get(path) if method == "POST" else None


def read_errand(packed: bytes) -> Errand:
    """Read what a house sent.

    Raises:
        JobInvalid: it is nothing that a buyer may ask of a seller.
    """
    try:
        errand = msgspec.msgpack.decode(packed, type=Errand)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JobInvalid("", f"is wrong: {str(error)[:200]}") from None
    longest_bytes = body_bytes_max(errand.method, errand.path)
    if longest_bytes is None:
        raise JobInvalid("path", "is none that buyers ask for")
    if len(errand.body) > longest_bytes:
        raise JobInvalid("body", f"has {len(errand.body)} bytes, and {longest_bytes} are the most")
    return errand


def read_part(packed: bytes) -> Part:
    """Read what a seller sent.

    Raises:
        JobInvalid: it is no part of an answer.
    """
    try:
        return msgspec.msgpack.decode(packed, type=Part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JobInvalid("part", f"is wrong: {str(error)[:200]}") from None
