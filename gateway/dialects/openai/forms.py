"""Multipart forms, forwarded byte for byte: only the few fields that routing needs are read.

The boundary is taken from the body's first line, so no header is needed. Files are skipped, not copied.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.dialects.openai.kinds import PATHS, Kind
from gateway.dialects.openai.part_head import PartHead, read_head
from gateway.dialects.openai.reader import refusal
from gateway.dialects.openai.tasks import FormRequest
from runtime.errors import RequestInvalid

PARTS_MAX = 100
FIELD_BYTES_MAX = 64 * 2**10
_HEAD_BYTES_MAX = 4096
# The characters that RFC 2046 allows in a boundary, at most 70.
_BOUNDARY = re.compile(rb"--([0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-])\r\n")
_READ = ("model", "stream", "user", "millrace", "provider")


def read_form(raw: bytes) -> tuple[FormRequest, str]:
    """Return the fields that routing needs, and the content type. Raises RequestInvalid naming the field."""
    boundary = _boundary(raw)
    fields: dict[str, Any] = {}
    for head, start, end in _parts(raw, boundary):
        name = head.name
        if name not in _READ:
            continue
        if head.is_file or not head.is_text:
            raise RequestInvalid(f"{name}: plain text in UTF-8 is expected", param=name, code="invalid_value")
        if name in fields:
            raise RequestInvalid(f"{name}: given twice", param=name, code="invalid_value")
        fields[name] = _value(name, raw[start:end])
    try:
        request = msgspec.convert(fields, FormRequest)
    except msgspec.ValidationError as error:
        raise refusal(error) from None
    return request, f'multipart/form-data; boundary="{boundary.decode()}"'


def with_model(raw: bytes, model: str) -> bytes:
    """Return the form for a backend that has another name for the model."""
    boundary = _boundary(raw)
    for head, start, end in _parts(raw, boundary):
        if head.name == "model":
            return raw[:start] + model.encode() + raw[end:]
    return raw


def _boundary(raw: bytes) -> bytes:
    found = _BOUNDARY.match(raw)
    if found is None:
        text = "The body is not a multipart form; send multipart/form-data with a file and a model."
        raise RequestInvalid(text, code="invalid_form")
    return found.group(1)


def _parts(raw: bytes, boundary: bytes) -> Iterator[tuple[PartHead, int, int]]:
    """Yield each part's head, and the start and end of its content."""
    delimiter = b"\r\n--" + boundary
    at = len(delimiter) - 2
    for _ in range(PARTS_MAX):
        if raw.startswith(b"--", at):
            if raw[at + 2 :].strip(b"\r\n"):
                raise RequestInvalid("The form has data after its end.", code="invalid_form")
            return
        if not raw.startswith(b"\r\n", at):
            raise RequestInvalid(
                "The form has its boundary inside of a part; choose another.", code="invalid_form"
            )
        head_end = raw.find(b"\r\n\r\n", at, at + _HEAD_BYTES_MAX)
        end = raw.find(delimiter, head_end + 2) if head_end >= 0 else -1
        if end < 0:
            raise RequestInvalid("The form ends in the middle of a part.", code="invalid_form")
        yield read_head(raw[at + 2 : head_end]), head_end + 4, end
        at = end + len(delimiter)
    raise RequestInvalid(f"The form has more than {PARTS_MAX} parts.", code="invalid_form")


def _value(name: str, content: bytes) -> Any:
    """Convert text to a value: in forms, flags and objects are written as text."""
    if len(content) > FIELD_BYTES_MAX:
        raise RequestInvalid(f"{name}: longer than {FIELD_BYTES_MAX} bytes", param=name, code="invalid_value")
    try:
        text = content.decode()
        if name == "stream":
            return {"true": True, "1": True}.get(text.strip().lower(), False)
        return msgspec.json.decode(content) if name in ("millrace", "provider") else text
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise RequestInvalid(f"{name}: cannot be read", param=name, code="invalid_value") from None


FORMS: tuple[Kind, ...] = ("transcription", "translation", "image_edit", "image_variation")
"""Kinds whose requests are forms; all are in PATHS."""
assert all(kind in PATHS for kind in FORMS)
