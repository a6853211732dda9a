"""Create rows that several requests may want at the same moment: one creates it, and all use that row."""

from sqlalchemy import inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlmodel import SQLModel


def put_if_new(session: Session, row: SQLModel) -> None:
    """Insert a row if its key is free. Otherwise wait until the key's owner has committed, and change nothing.

    Read the row afterwards, with a lock: another transaction may have written it.
    """
    kind = type(row)
    if session.get(kind, inspect(kind).primary_key_from_instance(row)) is not None:
        return
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return  # Another transaction took the key, and has committed by now.
