"""A hash of what was delivered so far, equal at buyer and seller however the text was cut on its way.

Each kind of text of each choice has a hash of its own, and the transcript's is over all of them in a fixed
order: so text of one kind may overtake another, and whoever has the texts can work it out afterwards.
"""

import hashlib
from typing import Literal

from market.errors import StatementInvalid
from market.records.canonical import canonical

INTERIM_TOKENS = 256
"""A seller signs an interim receipt each time so many more tokens are delivered: that is what may be unproven."""
TEXTS_MAX = 1024

TextKind = Literal["content", "reasoning", "calls"]


class Transcript:
    """Fed with the text as it is delivered. `request` is the digest of the request that it answers."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._texts: dict[tuple[int, TextKind], hashlib._Hash] = {}

    def add(self, text: str, kind: TextKind = "content", choice: int = 0) -> None:
        """Take a piece of text, cut anywhere, also between the halves of a surrogate pair: UTF-16 joins them.

        Raises:
            StatementInvalid: the answer has more texts than any may.
        """
        if not text:
            return
        if (choice, kind) not in self._texts and len(self._texts) >= TEXTS_MAX:
            raise StatementInvalid(f"an answer has at most {TEXTS_MAX} texts")
        self._texts.setdefault((choice, kind), hashlib.sha256()).update(text.encode("utf-16-le", "surrogatepass"))

    def digest(self) -> str:
        """The hash of everything up to here, in hex. More may be added afterwards."""
        texts = [[choice, kind, hashed.hexdigest()] for (choice, kind), hashed in sorted(self._texts.items())]
        return hashlib.sha256(canonical({"request": self._request, "texts": texts})).hexdigest()


def needs_receipt(told_tokens: int, delivered_tokens: int) -> bool:
    """Whether so much was delivered since the last receipt that the next one is due."""
    return delivered_tokens - told_tokens >= INTERIM_TOKENS
