"""Helpers for commands on keys, users and limits, with or without a running gateway."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from gateway.cli import output
from gateway.cli.store import Sessions, open_store, saying_what_is_wrong
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.identity.secret import has_secret, open_secret
from gateway.settings import Settings
from runtime.settings import SettingsInvalid

BY = Actor("machine", "command line")

_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@contextmanager
def open_directory(settings: Settings, *, make: bool = False, with_secret: bool = False) -> Generator[Directory]:
    """Open keys, users and limits; end the command with one line on an error.

    With `make`, missing tables are created. Issuing a key needs the secret that keys are hashed with.
    """
    with open_store(settings, make=make) as (read, write):
        if with_secret and not make and not has_secret(settings.identity, settings.data_dir):
            output.fail(f"no keys in {settings.data_dir}. Is --data-dir correct?")
        secret = _secret(settings, write) if make or with_secret else b""
        keys = Keys(secret, read, write)
        with saying_what_is_wrong():
            yield Directory.of(keys, settings.identity, settings.policy.lanes, read, write)


def _secret(settings: Settings, write: Sessions) -> bytes:
    try:
        return open_secret(settings.identity, settings.data_dir, write)
    except SettingsInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)


def duration_s(text: str, option: str) -> int:
    """Return the seconds of 30d, 12h, 90m or 45s; end the command for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        output.fail(
            f"{option} {text}: must be a number with a unit, e.g. 30d, 12h, 90m or 45s", output.WRONG_USAGE
        )
    return int(match[1]) * _SECONDS[match[2]]


def words_of(text: str | None) -> tuple[str, ...] | None:
    """Return comma-separated words, None if the option was not given."""
    return None if text is None else tuple(word.strip() for word in text.split(","))
