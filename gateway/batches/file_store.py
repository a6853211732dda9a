"""The folder of file contents, with one subfolder per tenant, and its size limits."""

import os
import secrets
import threading
from collections import Counter
from collections.abc import Container
from hashlib import sha256
from pathlib import Path

from runtime.errors import BodyTooLarge

_PLACE = "place"


class FileStore:
    """Counts the bytes in the folder, across restarts. Thread-safe; only one process may use the folder."""

    def __init__(self, folder: Path, bytes_max: int, tenant_bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._tenant_bytes_max = tenant_bytes_max
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()
        self.folder_id = ""

    def open(self, known: Container[str]) -> None:
        """Count stored bytes, and delete unknown files, which a crash left behind."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder_id = _place_of(self._folder)
        for folder in self._folder.iterdir():
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name in known:
                    self._bytes[folder.name] += path.stat().st_size
                else:
                    path.unlink()

    def path(self, owner: str, name: str) -> Path:
        """Return the path for a file of this owner; its folder exists."""
        folder = self._folder / _folder_of(owner)
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder / name

    def take(self, owner: str, size_bytes: int) -> None:
        """Reserve room for more bytes. Raises BodyTooLarge if there is none."""
        folder = _folder_of(owner)
        with self._lock:
            if self._bytes[folder] + size_bytes > self._tenant_bytes_max:
                text = f"Your files may use at most {self._tenant_bytes_max} bytes in all. Delete some first."
                raise BodyTooLarge(text, param="file", code="storage_full")
            if self._bytes.total() + size_bytes > self._bytes_max:
                text = f"This gateway's file storage of {self._bytes_max} bytes is full. Delete some files first."
                raise BodyTooLarge(text, param="file", code="storage_full")
            self._bytes[folder] += size_bytes

    def exceed(self, owner: str, size_bytes: int) -> None:
        """Count bytes that are stored regardless of limits: a batch's final errors, bounded by its lines."""
        with self._lock:
            self._bytes[_folder_of(owner)] += size_bytes

    def give_back(self, owner: str, size_bytes: int) -> None:
        with self._lock:
            self._bytes[_folder_of(owner)] -= size_bytes

    def remove(self, owner: str, name: str) -> None:
        """Delete a file, if it exists."""
        path = self.path(owner, name)
        try:
            size_bytes = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return
        self.give_back(owner, size_bytes)


def open_private(path: Path, flags: int) -> int:
    """Open a file that only this user can access, independent of the umask."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _folder_of(owner: str) -> str:
    """Hash the owner, because its name may not be a valid folder name."""
    return sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _place_of(folder: Path) -> str:
    """Return this folder's id in tables shared by several gateways; made on first use."""
    path = folder / _PLACE
    if not path.exists():
        with os.fdopen(open_private(path, os.O_WRONLY), "w") as file:
            file.write(secrets.token_hex(8))
    return path.read_text()
