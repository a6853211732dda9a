"""The input of a batch, one JSON object a line: read in portions, with a limit on each line."""

from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gateway.dialects.base import Question, Route
from gateway.dialects.routes import ROUTES
from runtime.errors import RequestInvalid, ServiceError

CUSTOM_ID_CHARS = 512

# Room for a line's fields other than its body.
_ENVELOPE_BYTES = 4096


class _Line(msgspec.Struct, frozen=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a batch; `line` counts from 1."""

    line: int
    custom_id: str
    body: bytes


class LineInvalid(Exception):
    """A line that is not a valid request, in the form of OpenAI's `errors`."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@cache
def route_of(endpoint: str) -> Route:
    return next(route for route in ROUTES if route.path == endpoint)


def raw_lines(path: Path, body_bytes_max: int) -> Generator[tuple[int, bytes]]:
    """Yield numbers and bytes of all lines except blank ones; a line that is too long is cut after the limit plus
    one.
    """
    bytes_max = body_bytes_max + _ENVELOPE_BYTES
    with path.open("rb") as file:
        line = 0
        while raw := file.readline(bytes_max + 1):
            line += 1
            rest = raw
            while len(rest) > bytes_max and not rest.endswith(b"\n"):
                rest = file.readline(bytes_max + 1)
            if raw.strip():
                yield line, raw


def read_line(line: int, raw: bytes, body_bytes_max: int) -> tuple[Item, str, str]:
    """Return the item with its method and url. Raises LineInvalid."""
    if len(raw) > body_bytes_max + _ENVELOPE_BYTES:
        text = f"The line is longer than this gateway's request limit of {body_bytes_max} bytes."
        raise LineInvalid("line_too_long", text)
    try:
        found = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise LineInvalid("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LineInvalid("invalid_json_line", "This line is not a JSON object in UTF-8.") from None
    return Item(line, found.custom_id, bytes(found.body)), found.method, found.url


def read_question(endpoint: str, body: bytes) -> Question:
    """Return a line's request. Raises LineInvalid, also in place of a RequestInvalid of its endpoint."""
    try:
        question = route_of(endpoint).read(body)
        if question.request.is_stream:
            text = "stream is not supported in batches. Leave it out."
            raise RequestInvalid(text, param="stream", code="invalid_value")
    except ServiceError as error:
        param = f"body.{error.param}" if error.param else "body"
        raise LineInvalid(error.code or "invalid_request", error.message, param) from None
    return question


def as_data(error: LineInvalid, line: int | None) -> dict[str, Any]:
    """Return an element of `errors.data`."""
    return {"code": error.code, "line": line, "message": error.message, "param": error.param}
