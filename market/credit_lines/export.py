"""One side's knowledge of a credit line, as one line of text that can be sent by any means.

It contains only signed records, so changing it on its way makes it worthless. The same text again, or an older
one, adds nothing.
"""

import base64
import binascii
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from market.errors import StatementInvalid
from market.protocol.records.envelope import RECORD_BYTES_MAX

PREFIX = "millrace-partner:"
TEXT_CHARS_MAX = 2**18
_BYTES_MAX = 2**20
_STATEMENTS_MAX = 128

RawRecord = Annotated[str, Meta(max_length=RECORD_BYTES_MAX)]
Url = Annotated[str, Meta(max_length=300, pattern=r"^(https?://[A-Za-z0-9._\[\]:-]+)?\Z")]


class CreditLineExport(Struct, frozen=True):
    """`records` are credit lines and payments, `statements` the sender's about its keys.

    `url` is where the sender sells and serves listings; empty if it does not.
    """

    records: Annotated[tuple[RawRecord, ...], Meta(max_length=8)]
    statements: Annotated[tuple[RawRecord, ...], Meta(max_length=_STATEMENTS_MAX)] = ()
    url: Url = ""


def is_address(url: str) -> bool:
    """Return whether a text may contain this address; empty means that there is none."""
    try:
        msgspec.convert(url, Url)
    except msgspec.ValidationError:
        return False
    return True


def written(telling: CreditLineExport) -> str:
    """Return a telling as one line of text."""
    packed = zlib.compress(msgspec.json.encode(telling), 9)
    return PREFIX + _encoded(packed)


def read(text: str) -> CreditLineExport:
    """Parse what `written` wrote, without checking signatures. Raises StatementInvalid for anything else."""
    packed = "".join(text.split())
    if len(packed) > TEXT_CHARS_MAX or not packed.startswith(PREFIX):
        raise StatementInvalid(f"a partner's text is one line that begins with {PREFIX}")
    encoded = packed.removeprefix(PREFIX)
    try:
        compressed = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(compressed, _BYTES_MAX)
        # The decoder ignores characters outside its alphabet, and spare bits at the end.
        if not unpacking.eof or unpacking.unused_data or _encoded(compressed) != encoded:
            raise StatementInvalid("the partner's text is incomplete, too long or changed")
        return msgspec.json.decode(plain, type=CreditLineExport)
    except (binascii.Error, ValueError, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise StatementInvalid(f"the partner's text cannot be read: {error}") from None


def _encoded(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")
