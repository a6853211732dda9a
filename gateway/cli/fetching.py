"""One file of a model from Hugging Face into its library's cache, gone on with where an earlier pull stopped.

The library itself begins a file anew in each process; a blob that lies whole in its cache it only links.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import httpx

from cluster.errors import ModelNotFound, WeightsMismatch

_PIECE_BYTES = 2**20
_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
_PATIENCE_S = 60.0
_SHA256_DIGITS, _SHA1_DIGITS = 64, 40
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

Tell = Callable[[int], None]
"""Called with each piece's size; may raise to stop."""


def fetch_blob(url: str, headers: dict[str, str], blob: Path, size_bytes: int, tell: Tell) -> bool:
    """Have the file at `url` lie at `blob`, whose name is its digest; False where that is none.

    Raises ModelNotFound where it cannot be fetched, WeightsMismatch for another file, and what `tell` does.
    """
    if not _ETAG.fullmatch(blob.name):
        return False
    if blob.exists():
        return True
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{blob.name}.part")
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelNotFound("another process fetches it just now; wait until it has ended") from None
        tell(file.tell())
        _fill(url, headers, file, size_bytes, tell)
        file.flush()
        os.fsync(file.fileno())
        found = _digest(part, blob.name)
        if found != blob.name:
            part.unlink()
            raise WeightsMismatch("what was pulled", blob.name, found)
        part.replace(blob)
    return True


def _fill(url: str, headers: dict[str, str], file: IO[bytes], size_bytes: int, tell: Tell) -> None:
    """Until it has all its bytes; a connection that breaks is made anew a few times. Raises ModelNotFound."""
    pauses = iter(_PAUSES_S)
    while (begin := file.tell()) < size_bytes:
        try:
            _go_on(url, headers, file, tell)
            why = "it ended too early"
        except httpx.HTTPError as error:
            why = f"{type(error).__name__} {error}"
        if file.tell() > begin:
            pauses = iter(_PAUSES_S)  # It goes on, however often it breaks.
        if file.tell() < size_bytes:
            pause_s = next(pauses, None)
            if pause_s is None:
                raise ModelNotFound(f"{url} cannot be fetched: {why}")
            time.sleep(pause_s)


def _go_on(url: str, headers: dict[str, str], file: IO[bytes], tell: Tell) -> None:
    """Append what the server sends from here on. Raises httpx.HTTPError."""
    begin = file.tell()
    plain = headers | {"accept-encoding": "identity"} | ({"range": f"bytes={begin}-"} if begin else {})
    with httpx.stream("GET", url, headers=plain, follow_redirects=True, timeout=_PATIENCE_S) as answer:
        answer.raise_for_status()
        if begin and answer.status_code != httpx.codes.PARTIAL_CONTENT:
            file.truncate(0)  # It gives the whole only.
        for piece in answer.iter_bytes(_PIECE_BYTES):
            tell(len(piece))
            file.write(piece)


def _digest(path: Path, expected: str) -> str:
    """Of large files the hub says the SHA-256, of small ones what git calls a blob."""
    with path.open("rb") as file:
        if len(expected) == _SHA256_DIGITS:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        return digest.hexdigest()
