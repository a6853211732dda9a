"""Columns of the first schema. All of them are NOT NULL unless `optional`."""

import sqlalchemy as sa

# SQLite numbers rows automatically only in columns of type INTEGER, and strict tables know no BIGINT.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def text(name: str, *, optional: bool = False, key: bool = False, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=optional, server_default=default)


def texts(*names: str, optional: bool = False) -> list[sa.Column[str]]:
    return [text(name, optional=optional) for name in names]


def number(name: str, *, optional: bool = False, default: str | None = None) -> sa.Column[int]:
    """Return a column of 64 bits."""
    return sa.Column(name, BIG, nullable=optional, server_default=default)


def numbers(*names: str, optional: bool = False) -> list[sa.Column[int]]:
    return [number(name, optional=optional) for name in names]


def number_key(name: str) -> sa.Column[int]:
    """Return a primary key of 64 bits whose values the gateway chooses."""
    return sa.Column(name, BIG, primary_key=True, autoincrement=False, nullable=False)


def wide(name: str, *, optional: bool = False) -> sa.Column[int]:
    """Return a column of 64 bits that is declared as BIGINT on SQLite, too."""
    return sa.Column(name, sa.BigInteger, nullable=optional)


def integer(name: str, *, optional: bool = False, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=optional, server_default=default)


def blob(name: str, *, optional: bool = False, key: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, primary_key=key, nullable=optional)


def boolean(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)
