"""Hash what was delivered so far, equally at buyer and seller, however the text was split on the way.

Each kind of text of each choice has its own hash, and the transcript hashes all of them in a fixed order. So text
of one kind may overtake another, and anyone who has the texts can compute it afterwards.
"""

import hashlib
from typing import Literal

from market.errors import StatementInvalid
from market.protocol.records.canonical import canonical

INTERIM_TOKENS = 256
"""A seller signs an interim receipt after this many further tokens: at most these are unproven."""
TEXTS_MAX = 1024

TextKind = Literal["content", "reasoning", "calls"]


class Transcript:
    """A running hash of the delivered text. `request` is the digest of the answered request."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._texts: dict[tuple[int, TextKind], hashlib._Hash] = {}

    def add(self, text: str, kind: TextKind = "content", choice: int = 0) -> None:
        """Add a piece of text, split anywhere, even between the halves of a surrogate pair: UTF-16 joins them.

        Raises:
            StatementInvalid: the answer has too many texts.
        """
        if not text:
            return
        if (choice, kind) not in self._texts and len(self._texts) >= TEXTS_MAX:
            raise StatementInvalid(f"an answer may have at most {TEXTS_MAX} texts")
        self._texts.setdefault((choice, kind), hashlib.sha256()).update(text.encode("utf-16-le", "surrogatepass"))

    def digest(self) -> str:
        """Return the hash of everything so far, in hex. More may be added afterwards."""
        texts = [[choice, kind, hashed.hexdigest()] for (choice, kind), hashed in sorted(self._texts.items())]
        return hashlib.sha256(canonical({"request": self._request, "texts": texts})).hexdigest()


def needs_receipt(signed_tokens: int, delivered_tokens: int) -> bool:
    """Return whether enough was delivered since the last receipt that the next one is due."""
    return delivered_tokens - signed_tokens >= INTERIM_TOKENS
