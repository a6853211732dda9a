"""Rows as CSV for spreadsheets (RFC 4180), without text that a spreadsheet would read as a formula."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the columns and rows as CSV. Text that looks like a formula gets an apostrophe before it."""
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(columns)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return written.getvalue()


def _harmless(cell: object) -> object:
    if isinstance(cell, str) and cell.startswith(_FORMULAS) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell
