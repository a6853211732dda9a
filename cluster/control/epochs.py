"""Numbers of deployments: each is used once, also across restarts, so that old orders are known as old."""

import os
from pathlib import Path


class Epochs:
    """Counts in a file of `folder`; one process writes it."""

    def __init__(self, folder: Path, name: str = "epoch") -> None:
        self._file = folder / name
        self.current = self._first = self._last()

    @property
    def has_advanced(self) -> bool:
        """Whether this run has used one."""
        return self.current > self._first

    def advance(self) -> int:
        """The next epoch, on disk before anybody hears of it. Raises OSError."""
        fresh = self._file.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(str(self.current + 1))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        self.current += 1
        return self.current

    def _last(self) -> int:
        """What an earlier run reached; 0 where none did, or where a full disk left the file empty."""
        content = self._file.read_text().strip() if self._file.is_file() else ""
        return int(content) if content.isdigit() else 0
