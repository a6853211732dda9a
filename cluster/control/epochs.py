"""Numbers of deployments. Each is used once, even across restarts, so that old orders are recognisable."""

import hashlib
from pathlib import Path

from runtime.files import replace_file


class PlanVersions:
    """A deployment's counter in a file of `folder`. Only one process writes it."""

    def __init__(self, folder: Path, deployment: str) -> None:
        # A name may have characters that file names must not have.
        self._file = folder / hashlib.sha256(deployment.encode()).hexdigest()[:32]
        self.current = self._first = self._last()

    @property
    def has_advanced(self) -> bool:
        """Tell whether this run has used a number."""
        return self.current > self._first

    def advance(self) -> int:
        """Return the next epoch, which is on disk before any machine learns it. Raise OSError."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, str(self.current + 1), mode=0o644)
        self.current += 1
        return self.current

    def _last(self) -> int:
        """Return the number that an earlier run reached; 0 if none did, or if a full disk left the file empty."""
        content = self._file.read_text().strip() if self._file.is_file() else ""
        return int(content) if content.isdigit() else 0
