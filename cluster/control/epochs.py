"""Numbers of deployments. Each is used once, even across restarts, so that old orders are recognisable."""

import os
from pathlib import Path


class PlanVersions:
    """A counter in a file of `folder`. Only one process writes it."""

    def __init__(self, folder: Path, name: str = "epoch") -> None:
        self._file = folder / name
        self.current = self._first = self._last()

    @property
    def has_advanced(self) -> bool:
        """Tell whether this run has used a number."""
        return self.current > self._first

    def advance(self) -> int:
        """Return the next epoch, which is on disk before any machine learns it. Raise OSError."""
        fresh = self._file.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(str(self.current + 1))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        self.current += 1
        return self.current

    def _last(self) -> int:
        """Return the number that an earlier run reached; 0 if none did, or if a full disk left the file empty."""
        content = self._file.read_text().strip() if self._file.is_file() else ""
        return int(content) if content.isdigit() else 0
