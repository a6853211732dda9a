"""The file of cloud keys: `NAME=VALUE` lines, readable by its owner alone, read by the worker alone."""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

FILE_BYTES_MAX = 256 * 1024
KEYLESS = frozenset(
    (
        "bedrock",
        "bedrock_converse",
        "llamafile",
        "lm_studio",
        "ollama",
        "ollama_chat",
        "sagemaker",
        "sagemaker_chat",
        "vertex_ai",
        "vertex_ai_beta",
    )
)
"""Providers that authenticate callers without a single-line key, or not at all."""
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


class KeyUnavailable(Exception):
    """A key cannot be read; the message names key and file, never a value."""


@dataclass
class KeysFile:
    """Looks keys up by name. Reads the file again when it has changed, so rotating a key needs no restart."""

    path: Path
    _seen: tuple[int, ...] = ()
    _keys: dict[str, str] = field(default_factory=dict, repr=False)

    def value_of(self, name: str) -> str:
        """Raises KeyUnavailable."""
        self._refresh(name)
        value = self._keys.get(name)
        if not value:
            raise KeyUnavailable(f"The key {name} is not in {self.path}.")
        return value

    def _refresh(self, name: str) -> None:
        try:
            with open(self.path, "rb", opener=_open_at_once) as file:  # Path.open takes no opener
                now = os.fstat(file.fileno())
                self._refuse_if_exposed(now, name)
                seen = (now.st_ino, now.st_mtime_ns, now.st_size)
                if seen != self._seen:
                    self._keys = _parse(file.read(FILE_BYTES_MAX), self.path)
                    self._seen = seen
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise KeyUnavailable(f"The key {name} cannot be read from {self.path}: {reason}.") from None

    def _refuse_if_exposed(self, now: os.stat_result, name: str) -> None:
        mode = stat.S_IMODE(now.st_mode)
        refused = f"The key {name} is not read from {self.path}"
        if not stat.S_ISREG(now.st_mode):
            raise KeyUnavailable(f"{refused}: it is not a regular file.")
        if mode & 0o077:
            raise KeyUnavailable(f"{refused}: its mode is {mode:04o}, it must be 0600.")
        if now.st_size > FILE_BYTES_MAX:
            raise KeyUnavailable(f"{refused}: it is larger than {FILE_BYTES_MAX} bytes.")


def keys_trouble(path: Path) -> str | None:
    """Why no key can be read from the file, without its path; None if it can be opened."""
    try:
        with open(path, "rb", opener=_open_at_once):
            return None
    except OSError as error:
        return f"the cloud key file cannot be read: {error.strerror}"


def usual_key_name(provider: str) -> str:
    """Return the name that a provider's own tools use, for example OPENAI_API_KEY for `openai`."""
    return re.sub(r"\W", "_", provider).upper() + "_API_KEY"


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking: a pipe in the file's place must not block every request."""
    return os.open(path, flags | os.O_NONBLOCK)


def _parse(content: bytes, path: Path) -> dict[str, str]:
    keys: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise KeyUnavailable(f"Line {number} of {path} is not NAME=VALUE.")
        name, value = match.groups()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        keys[name] = value
    return keys
