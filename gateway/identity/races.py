"""Races of two admins: the database allows one change, and the other gets an error."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import IntegrityError

from runtime.errors import Conflict


@contextmanager
def refusing_what_others_did(what: str) -> Iterator[None]:
    """Wrap a transaction that reads and then writes. Raises Conflict."""
    try:
        yield
    except IntegrityError:
        raise Conflict(f"{what} at the same moment; try again") from None
