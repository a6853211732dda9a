"""Downloads one file of a model from Hugging Face into the library's cache, resuming an interrupted download.

The library itself restarts an interrupted file in a new process; it only links a complete blob in its cache.
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
"""Called with the size of each piece; may raise to stop the download."""


def fetch_blob(url: str, headers: dict[str, str], blob: Path, size_bytes: int, tell: Tell) -> bool:
    """Download the file at `url` to `blob`, whose name is its digest; return False if the name is not a digest.

    Raises ModelNotFound if the download fails, WeightsMismatch for wrong content, and what `tell` raises.
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
            raise ModelNotFound("another process is downloading this model; wait until it has finished") from None
        tell(file.tell())
        _fill(url, headers, file, size_bytes, tell)
        file.flush()
        os.fsync(file.fileno())
        found = _digest(part, blob.name)
        if found != blob.name:
            part.unlink()
            raise WeightsMismatch("the download", blob.name, found)
        part.replace(blob)
    return True


def _fill(url: str, headers: dict[str, str], file: IO[bytes], size_bytes: int, tell: Tell) -> None:
    """Append until the file is complete, reconnecting a few times after errors. Raises ModelNotFound."""
    pauses = iter(_PAUSES_S)
    while (begin := file.tell()) < size_bytes:
        try:
            _go_on(url, headers, file, tell)
            why = "the connection ended too early"
        except httpx.HTTPError as error:
            why = f"{type(error).__name__} {error}"
        if file.tell() > begin:
            pauses = iter(_PAUSES_S)  # progress was made: start the retries again
        if file.tell() < size_bytes:
            pause_s = next(pauses, None)
            if pause_s is None:
                raise ModelNotFound(f"cannot download {url}: {why}")
            time.sleep(pause_s)


def _go_on(url: str, headers: dict[str, str], file: IO[bytes], tell: Tell) -> None:
    """Append the rest of the file from the server. Raises httpx.HTTPError."""
    begin = file.tell()
    plain = headers | {"accept-encoding": "identity"} | ({"range": f"bytes={begin}-"} if begin else {})
    with httpx.stream("GET", url, headers=plain, follow_redirects=True, timeout=_PATIENCE_S) as answer:
        answer.raise_for_status()
        if begin and answer.status_code != httpx.codes.PARTIAL_CONTENT:
            file.truncate(0)  # the server sends only the whole file
        for piece in answer.iter_bytes(_PIECE_BYTES):
            tell(len(piece))
            file.write(piece)


def _digest(path: Path, expected: str) -> str:
    """Return the digest: the hub names large files by SHA-256, small ones by their git blob hash."""
    with path.open("rb") as file:
        if len(expected) == _SHA256_DIGITS:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        return digest.hexdigest()
