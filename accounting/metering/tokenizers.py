"""Load the tokenizers that count answers. Each file is pinned by its SHA-256 and read when it is first needed."""

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from accounting.errors import TokenizerMismatch
from accounting.metering.delivered import TokenCounter, is_librarys

_log = logging.getLogger(__name__)

_LOADED_MAX = 8
FILE_BYTES_MAX = 64 * 2**20
"""Largest tokenizer.json that is read. Published ones have up to 35 MB."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A tokenizer.json and the SHA-256 (hex) of its content."""

    path: Path
    sha256: str


def load_counter(pinned: Pinned) -> TokenCounter:
    """Read a tokenizer.

    Raises:
        TokenizerMismatch: the file is too large, has another SHA-256, or is no tokenizer.
        OSError: the file cannot be read.
    """
    if pinned.path.stat().st_size > FILE_BYTES_MAX:
        raise TokenizerMismatch(f"{pinned.path} has more than {FILE_BYTES_MAX} bytes")
    content = pinned.path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != pinned.sha256.lower():
        raise TokenizerMismatch(f"{pinned.path} has SHA-256 {found}, but {pinned.sha256} is pinned")
    from tokenizers import Tokenizer  # Import only here, so that gateways without a tokenizer save 4 MB.

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except BaseException as error:
        if is_librarys(error):
            raise TokenizerMismatch(f"{pinned.path} is not a tokenizer: {error}") from None
        raise
    return TokenCounter(tokenizer, found)


class Tokenizers:
    """Find the tokenizer of a model by the name that callers use. `named` is the owner's configuration."""

    def __init__(self, named: Mapping[str, Pinned]) -> None:
        self._named = dict(named)
        self._at_hand: list[Callable[[str], Pinned | None]] = []
        self._loaded: dict[str, TokenCounter | None] = {}
        self._lock = threading.Lock()

    def look_also(self, at_hand: Callable[[str], Pinned | None]) -> None:
        """Also look among models whose files this machine has, if none is named.

        Called on any thread, without I/O.
        """
        self._at_hand.append(at_hand)

    def knows(self, model: str) -> bool:
        """Return whether a tokenizer is known for the model. Its file may still fail the check. No I/O."""
        return self.pinned(model) is not None

    def find(self, model: str) -> TokenCounter | None:
        """Return the model's counter. The first call reads its file: tens of megabytes of memory, and some time.

        Return None if no tokenizer is known, or its file is not the pinned one; the latter is logged once.
        """
        pinned = self.pinned(model)
        if pinned is None:
            return None
        with self._lock:
            if pinned.sha256 not in self._loaded:
                if len(self._loaded) >= _LOADED_MAX:
                    self._loaded.pop(next(iter(self._loaded)))
                self._loaded[pinned.sha256] = _load(model, pinned)
            return self._loaded[pinned.sha256]

    def pinned(self, model: str) -> Pinned | None:
        """Return the model's tokenizer file, if one is named for it or found on this machine. No I/O."""
        if (named := self._named.get(model)) is not None:
            return named
        return next((found for look in self._at_hand if (found := look(model)) is not None), None)


def _load(model: str, pinned: Pinned) -> TokenCounter | None:
    try:
        return load_counter(pinned)
    except (TokenizerMismatch, OSError) as error:
        _log.error("cannot use the tokenizer of %s, counting characters instead: %s", model, error)
        return None
