"""Rows that several requests may want to make at the same moment: one makes it, and all go on with that one."""

from sqlalchemy import inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlmodel import SQLModel


def put_if_new(session: Session, row: SQLModel) -> None:
    """Write a row if its key is free; else wait until whoever took the key has committed, and change nothing.

    Read the row afterwards, with a lock: it may be another one's.
    """
    kind = type(row)
    if session.get(kind, inspect(kind).primary_key_from_instance(row)) is not None:
        return
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return  # Another transaction took the key, and has committed by now.
