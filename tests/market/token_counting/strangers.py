"""Tokenizers as strangers make them: what aborts the library, what makes it panic, what takes minutes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from accounting.metering.tokenizers import Pinned
from tests.accounting.tokenizer import make_tokenizer


def hostile(folder: Path, **model: Any) -> bytes:
    """An honest file with another model in it."""
    parsed = json.loads(make_tokenizer(folder).path.read_bytes())
    return json.dumps(parsed | {"pre_tokenizer": None, "post_processor": None, "model": model}).encode()


def aborting(folder: Path) -> bytes:
    """The library cuts a merge through the middle of a character, in a place where a panic ends the process."""
    vocabulary = {"a": 0, "\u00e9": 1}
    return hostile(folder, type="BPE", vocab=vocabulary, merges=[["a", "\u00e9"]], continuing_subword_prefix="z")


def slow(folder: Path) -> bytes:
    """Half a minute for 65,536 times `a`."""
    vocabulary = [["<unk>", 0.0], *(["a" * size, -float(size)] for size in range(1, 1025))]
    return hostile(folder, type="Unigram", unk_id=0, byte_fallback=False, vocab=vocabulary)


def kept(folder: Path, content: bytes) -> Pinned:
    """As it was stored before any check."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = folder / f"{sha256}.json"
    path.write_bytes(content)
    return Pinned(path, sha256)


def panicking(folder: Path) -> bytes:
    """As `aborting`, if the panic can be caught, which needs BaseException."""
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    return hostile(folder, type="BPE", vocab=vocabulary, merges=[["a", "b"]], continuing_subword_prefix="####")
