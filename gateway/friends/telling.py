"""What one side of a credit line knows of it, as one line of text to be sent by whatever means.

It carries signed records alone: whoever changes it on its way makes it worthless, and the same one again, or an
older one, says nothing new.
"""

import base64
import binascii
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from market.errors import StatementInvalid
from market.records.envelope import RECORD_BYTES_MAX

PREFIX = "millrace-friend:"
TEXT_CHARS_MAX = 2**18
_BYTES_MAX = 2**20
_STATEMENTS_MAX = 128

RawRecord = Annotated[str, Meta(max_length=RECORD_BYTES_MAX)]
Url = Annotated[str, Meta(max_length=300, pattern=r"^(https?://[A-Za-z0-9._\[\]:-]+)?\Z")]


class Telling(Struct, frozen=True):
    """`records` are credit lines and payments, `statements` what the teller has said about its keys.

    `url` is where the teller sells and can be asked for listings; empty where nowhere.
    """

    records: Annotated[tuple[RawRecord, ...], Meta(max_length=8)]
    statements: Annotated[tuple[RawRecord, ...], Meta(max_length=_STATEMENTS_MAX)] = ()
    url: Url = ""


def is_address(url: str) -> bool:
    """Whether a telling may name it; the empty one says that there is none."""
    try:
        msgspec.convert(url, Url)
    except msgspec.ValidationError:
        return False
    return True


def written(telling: Telling) -> str:
    """One line of text."""
    packed = zlib.compress(msgspec.json.encode(telling), 9)
    return PREFIX + _encoded(packed)


def read(text: str) -> Telling:
    """Raises StatementInvalid for anything that `written` did not write; who signed it is not looked at."""
    packed = "".join(text.split())
    if len(packed) > TEXT_CHARS_MAX or not packed.startswith(PREFIX):
        raise StatementInvalid(f"a friend's text begins with {PREFIX} and is one line")
    encoded = packed.removeprefix(PREFIX)
    try:
        compressed = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(compressed, _BYTES_MAX)
        # The decoder passes over characters that are not of its alphabet, and over spare bits at the end.
        if not unpacking.eof or unpacking.unused_data or _encoded(compressed) != encoded:
            raise StatementInvalid("the friend's text is cut short, too long, or was changed")
        return msgspec.json.decode(plain, type=Telling)
    except (binascii.Error, ValueError, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise StatementInvalid(f"the friend's text cannot be read: {error}") from None


def _encoded(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")
