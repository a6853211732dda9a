"""The worker's log: one JSON line per event on stderr, which the supervisor passes on; no prompt, no key."""

import sys

import orjson


def note(event: str, **fields: str | int | float | None) -> None:
    """Write one line to the log. Names of `fields` end in their units; a field that is None is left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    line = orjson.dumps({"event": event, **known})
    try:
        sys.stderr.buffer.write(line + b"\n")
        sys.stderr.buffer.flush()
    except OSError:
        return  # the gateway that reads this log is gone, so there is no reason to write
