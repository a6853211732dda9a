"""The id of one request: in its answer's header, in its log lines, in its row of the request log."""

import os
import secrets
import time

HEADER = b"x-request-id"

_DIGITS = 12
# Number of ids for which random digits are drawn in one system call: a call for each would dominate the cost.
_DRAWN_AT_ONCE = 256

_drawn: list[str] = []
# A child that drew from its parent's supply would give the same ids.
os.register_at_fork(after_in_child=_drawn.clear)


def new_request_id() -> str:
    """An id that cannot be guessed. Later ids sort after earlier ones, so indexes grow at their end."""
    if not _drawn:
        digits = secrets.token_hex(_DRAWN_AT_ONCE * _DIGITS // 2)
        _drawn.extend(digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS))
    return f"req_{time.time_ns() // 1_000_000:012x}{_drawn.pop()}"
