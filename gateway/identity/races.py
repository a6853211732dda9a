"""Two who do the same at the same moment: the database lets one, and the other is told."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import IntegrityError

from runtime.errors import Conflict


@contextmanager
def refusing_what_others_did(what: str) -> Iterator[None]:
    """Around a transaction that looks first and writes then. Raises Conflict."""
    try:
        yield
    except IntegrityError:
        raise Conflict(f"{what} at the same moment; try again") from None
