"""The head of a form's part, read so strictly that every backend reads it the same way."""

import re
from dataclasses import dataclass

from runtime.errors import RequestInvalid

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_DISPOSITION = "content-disposition"
_TYPE = "content-type"
_ENCODING = "content-transfer-encoding"
_KNOWN = frozenset((_DISPOSITION, _TYPE, _ENCODING, "content-length"))
# Some servers decode base64 and quoted-printable, most do not: the encodings here mean "unchanged".
_AS_IT_IS = frozenset((b"binary", b"8bit", b"7bit"))
_CHARSET = re.compile(rb'(?i);[ \t]*charset[ \t]*=[ \t]*"?([^";\s]*)')
_READABLE = frozenset((b"utf-8", b"us-ascii"))
# A backslash before a quote ends the value for some and not for others, so there must be none.
_PARAMETER = re.compile(
    rb"""[ \t]*;[ \t]*(name|filename\*?)=(?:"((?:[^"\\]|\\[^"])*)"|([!#$%&'*+.^_`|~0-9A-Za-z-]+))[ \t]*""", re.I
)


@dataclass(frozen=True, slots=True)
class PartHead:
    """`is_text` is whether its content is UTF-8, as far as the head says."""

    name: str
    is_file: bool
    is_text: bool


def read_head(head: bytes) -> PartHead:
    """The lines of a part before its content. Raises RequestInvalid."""
    lines: dict[str, bytes] = {}
    for line in head.split(b"\r\n"):
        found = _LINE.fullmatch(line)
        name = found.group(1).decode().lower() if found else ""
        if not found or name not in _KNOWN or name in lines:
            raise _unreadable(f"the line {line[:80].decode('utf-8', 'replace')!r}")
        lines[name] = found.group(2).strip()
    if lines.get(_ENCODING, b"binary").lower() not in _AS_IT_IS:
        raise _unreadable("a Content-Transfer-Encoding; send the content as it is")
    parameters = _parameters(lines.get(_DISPOSITION, b""))
    charset = _CHARSET.search(lines.get(_TYPE, b""))
    return PartHead(
        parameters["name"].decode("utf-8", "replace"),
        is_file="filename" in parameters or "filename*" in parameters,
        is_text=charset is None or charset.group(1).lower() in _READABLE,
    )


def _parameters(disposition: bytes) -> dict[str, bytes]:
    kind = b"form-data"
    at = len(kind)
    found: dict[str, bytes] = {}
    if disposition[:at].lower() == kind:
        while (parameter := _PARAMETER.match(disposition, at)) is not None:
            name = parameter.group(1).decode().lower()
            if name in found:
                raise _unreadable(f"{name} twice")
            found[name] = parameter.group(2) or parameter.group(3) or b""
            at = parameter.end()
    if at != len(disposition) or not found.get("name") or b"\\" in found["name"]:
        raise _unreadable("a Content-Disposition that is not form-data with a name and, for files, a filename")
    return found


def _unreadable(what: str) -> RequestInvalid:
    return RequestInvalid(f"The form has a part with {what}, which servers read differently.", code="invalid_form")
