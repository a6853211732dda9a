"""The tokenizers that answers are counted with: each file pinned by its SHA-256, read when it is first needed."""

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


@dataclass(frozen=True, slots=True)
class Pinned:
    """A tokenizer.json and the SHA-256 (hex) of its content."""

    path: Path
    sha256: str


def load_counter(pinned: Pinned) -> TokenCounter:
    """Read a tokenizer.

    Raises:
        TokenizerMismatch: the file is another one, or no tokenizer at all.
        OSError: it cannot be read.
    """
    content = pinned.path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != pinned.sha256.lower():
        raise TokenizerMismatch(f"{pinned.path} has SHA-256 {found}, but {pinned.sha256} is pinned")
    from tokenizers import Tokenizer  # Gateways that need none go without its 4 MB.

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except BaseException as error:
        if is_librarys(error):
            raise TokenizerMismatch(f"{pinned.path} is no tokenizer: {error}") from None
        raise
    return TokenCounter(tokenizer, found)


class Tokenizers:
    """Finds the tokenizer of a model by the name that callers use for it; `named` are the owner's."""

    def __init__(self, named: Mapping[str, Pinned]) -> None:
        self._named = dict(named)
        self._at_hand: list[Callable[[str], Pinned | None]] = []
        self._loaded: dict[str, TokenCounter | None] = {}
        self._lock = threading.Lock()

    def look_also(self, at_hand: Callable[[str], Pinned | None]) -> None:
        """Where none is named, look among models whose files this machine has. Asked on any thread; no I/O."""
        self._at_hand.append(at_hand)

    def knows(self, model: str) -> bool:
        """Whether a tokenizer is named for the model; it may still turn out to be another file. No I/O."""
        return self.pinned(model) is not None

    def find(self, model: str) -> TokenCounter | None:
        """Return the model's counter, reading its file the first time: tens of megabytes of memory, and some time.

        None where no tokenizer is known, or its file is not the one that is pinned; then that is logged, once.
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
        """Where the model's tokenizer is, if one is named for it or at hand. No I/O."""
        if (named := self._named.get(model)) is not None:
            return named
        return next((found for look in self._at_hand if (found := look(model)) is not None), None)


def _load(model: str, pinned: Pinned) -> TokenCounter | None:
    try:
        return load_counter(pinned)
    except (TokenizerMismatch, OSError) as error:
        _log.error("the tokenizer of %s is not used, characters are counted instead: %s", model, error)
        return None
