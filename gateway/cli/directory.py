"""What commands need that work on keys, people and limits, whether or not a gateway runs."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from gateway.cli import output
from gateway.cli.store import Sessions, open_store
from gateway.errors import GatewayError, RequestInvalid
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.identity.secret import has_secret, open_secret
from gateway.settings import Settings, SettingsInvalid

BY = Actor("machine", "command line")

_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@contextmanager
def open_directory(settings: Settings, *, make: bool = False, with_secret: bool = False) -> Generator[Directory]:
    """Keys, people and limits; ends the command with one line when they refuse.

    Only with `make` where there were none. Keys can be given a text only with the secret that it is hashed with.
    """
    with open_store(settings, make=make) as (read, write):
        if with_secret and not make and not has_secret(settings.identity, settings.data_dir):
            output.fail(f"there is no key in {settings.data_dir}: is it the --data-dir of a gateway?")
        secret = _secret(settings, write) if make or with_secret else b""
        keys = Keys(secret, read, write)
        try:
            yield Directory.of(keys, settings.identity, settings.policy.lanes, read, write)
        except RequestInvalid as error:
            output.fail(error.message, output.WRONG_USAGE)
        except GatewayError as error:
            output.fail(error.message)


def _secret(settings: Settings, write: Sessions) -> bytes:
    try:
        return open_secret(settings.identity, settings.data_dir, write)
    except SettingsInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)


def duration_s(text: str, option: str) -> int:
    """30d, 12h, 90m or 45s, in seconds; ends the command for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        output.fail(f"{option} {text}: a number with its unit, as 30d, 12h, 90m or 45s", output.WRONG_USAGE)
    return int(match[1]) * _SECONDS[match[2]]


def listed(text: str | None, option: str) -> tuple[str, ...] | None:
    """Comma-separated words; None for an option that was not given. Ends the command for empty ones."""
    if text is None:
        return None
    words = tuple(word.strip() for word in text.split(","))
    if not all(word and word.isprintable() and len(word) <= 200 for word in words):
        output.fail(f"{option} {text}: words between commas, none of them empty", output.WRONG_USAGE)
    return words
