"""Encode money in signed records: nano-USD as decimal strings, because JSON's numbers are not exact enough."""

import re
from typing import Any

from accounting.money import MAX_EVENT_NANO

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,15}")


class Amount(int):
    """Nano-USD from zero up to `MAX_EVENT_NANO`. The ledger takes only plain integers: pass `int(amount)`."""

    def __new__(cls, value: int) -> "Amount":
        """Raises ValueError if `value` is not a whole number from 0 to MAX_EVENT_NANO."""
        if type(value) not in (int, cls) or not 0 <= value <= MAX_EVENT_NANO:
            raise ValueError(f"Expected nano-USD from 0 to {MAX_EVENT_NANO}")
        return super().__new__(cls, value)


def read_amount(kind: type, value: Any) -> Any:
    """Decode `Amount`, which msgspec leaves to us, from plain ASCII digits without leading zeros.

    Raises ValueError for anything else.
    """
    if kind is not Amount:
        raise NotImplementedError(f"no field may be a {kind.__name__}")
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise ValueError("Expected nano-USD as a decimal string")
    return Amount(int(value))


def write_amount(value: Any) -> str:
    """Encode `Amount`, which msgspec leaves to us."""
    if not isinstance(value, Amount):
        raise NotImplementedError(f"no field may be a {type(value).__name__}")
    return str(int(value))
