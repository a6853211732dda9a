"""Reads and replaces the section `[selling]` of millrace.toml without touching the rest of the file.

The agent reads the file when it starts. The rest of the file stays the same byte for byte; if that is not
possible, nothing is written.
"""

import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.settings import FILE_NAME
from market.settings.seller import SellingSettings
from runtime.errors import Conflict
from runtime.settings import SettingsInvalid

SECTION = "selling"
SECRETS = frozenset({"marketplace_key"})
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?\n?")
_OURS = re.compile(r"""(?:selling|"selling"|'selling')\s*(?:\..*)?""")
_COMMENT = re.compile(r"\s*(?:#.*)?\n?")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_MASK = "**********"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The millrace.toml of a data directory; the file may be missing."""

    path: Path

    @classmethod
    def of(cls, data_dir: Path) -> "SettingsFile":
        return cls(data_dir / FILE_NAME)

    def section(self) -> dict[str, Any]:
        """Return the current `[selling]` section. Raises SettingsInvalid for a file that cannot be read."""
        return _section_in(self._text())

    def put(self, section: Mapping[str, Any], *, before: Mapping[str, Any], record: Callable[[], None]) -> None:
        """Replace `before` with `section` atomically. Call `record` first, unless the save is refused.

        After `record` only the disk can fail.

        Raises:
            Conflict: the section is no longer `before`, or cannot be separated from the rest.
            SettingsInvalid: the file cannot be read or written.
        """
        # If the owner made the file a link, replace the file that it points to.
        path = self.path.resolve()
        try:
            with _alone_in(path.parent):
                text = self._text()
                if _section_in(text) != before:
                    raise Conflict(
                        f"{FILE_NAME} was changed meanwhile. Check the updated values, then save again."
                    )
                replaced = with_section(text, section)
                record()
                _replace(path, replaced)
        except OSError as error:
            raise SettingsInvalid(f"{self.path}: cannot be written ({error.strerror})") from None

    def _text(self) -> str:
        try:
            return self.path.read_bytes().decode()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except UnicodeDecodeError:
            raise SettingsInvalid(f"{self.path}: not UTF-8, which TOML requires") from None
        except OSError as error:
            raise SettingsInvalid(f"{self.path}: cannot be read ({error.strerror})") from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder: two admins may write at the same time."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    # The new file must be unreadable to others, whatever mode the old one had: it may contain keys.
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def with_section(text: str, section: Mapping[str, Any]) -> str:
    """Return the text with the section replaced or appended. Raises Conflict, SettingsInvalid."""
    before = _parsed(text)
    head, tail = _around(text)
    whole = head + as_toml(section) + (f"\n{tail}" if tail else "")
    try:
        after = tomllib.loads(whole)
    except tomllib.TOMLDecodeError:
        after = {}
    others = {name: value for name, value in before.items() if name != SECTION}
    if {name: value for name, value in after.items() if name != SECTION} != others or after.get(SECTION) != dict(
        section
    ):
        raise Conflict(
            f"The section [selling] of {FILE_NAME} cannot be replaced safely. "
            "Copy the section shown here into the file yourself."
        )
    return whole


def as_toml(section: Mapping[str, Any], *, is_masked: bool = False) -> str:
    """Format the section as TOML; with `is_masked` secrets are hidden."""
    flat = [f"[{SECTION}]"]
    tables: list[str] = []
    for name, value in section.items():
        # An unknown name may be a misspelled secret.
        is_plain = name in SellingSettings.model_fields and name not in SECRETS
        shown = value if is_plain or not is_masked else _MASK
        if isinstance(shown, Mapping):
            tables += [
                "",
                f"[{SECTION}.{_key(name)}]",
                *(f"{_key(key)} = {_value(one)}" for key, one in shown.items()),
            ]
        elif isinstance(shown, list) and shown and all(isinstance(one, Mapping) for one in shown):
            for one in shown:
                tables += [
                    "",
                    f"[[{SECTION}.{_key(name)}]]",
                    *(f"{_key(key)} = {_value(each)}" for key, each in one.items()),
                ]
        else:
            flat.append(f"{_key(name)} = {_value(shown)}")
    return "\n".join([*flat, *tables]) + "\n"


def _around(text: str) -> tuple[str, str]:
    """Return the text before the section's place, and the text after it.

    Comments at the end of one of the section's tables belong to what follows: they stay.
    """
    kept: list[str] = []
    comments: list[str] = []
    place, is_ours = None, False
    # Not splitlines: a comment may contain characters that only splitlines treats as line ends.
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        if header := _HEADER.fullmatch(line):
            is_ours = bool(_OURS.fullmatch(header[1]))
            if is_ours and place is None:
                place = len(kept)
            kept += [] if is_ours else comments
            comments = []
        if not is_ours:
            kept.append(line)
        elif _COMMENT.fullmatch(line):
            comments.append(line)
        else:
            comments = []
    if place is None:
        head = text.rstrip()
        return f"{head}\n\n" if head else "", ""
    kept += comments
    return "".join(kept[:place]), "".join(kept[place:]).lstrip("\r\n")


def _section_in(text: str) -> dict[str, Any]:
    found = _parsed(text).get(SECTION, {})
    return dict(found) if isinstance(found, Mapping) else {}


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{FILE_NAME}: {error}") from None


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    # JSON strings are valid TOML except for one control character, which the check above rejects.
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        raise Conflict(f"{FILE_NAME} has an unsupported value in [selling]: {value}") from None
