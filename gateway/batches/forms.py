"""Parse an upload's form as it arrives: fields are kept, the one file is written to disk in pieces."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Message, Receive, Scope

from gateway.batches.files import Upload
from runtime.errors import RequestInvalid

# A client that sends nothing for this long, or takes this long in total, is dropped.
PIECE_TIMEOUT_S = 30.0
UPLOAD_TIMEOUT_S = 1800.0

_FIELDS_MAX = 20
_FIELD_BYTES_MAX = 4096
_WRITE_BYTES = 2**20
_FILENAME_CHARS = 255


@dataclass
class UploadForm:
    """The form's fields; `filename` is None until the file part begins."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def read_upload(
    scope: Scope, receive: Receive, begin: Callable[[], Awaitable[Upload]]
) -> tuple[UploadForm, Upload]:
    """Return the form, with its file on disk. Raises RequestInvalid, BodyTooLarge and what `begin` raises."""
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            return await _read(_Reader(_boundary(scope)), receive, begin)
    except TimeoutError:
        text = (
            f"The upload timed out after {PIECE_TIMEOUT_S:.0f} s without data, or {UPLOAD_TIMEOUT_S:.0f} s in all."
        )
        raise RequestInvalid(text) from None


async def _read(
    reader: "_Reader", receive: Receive, begin: Callable[[], Awaitable[Upload]]
) -> tuple[UploadForm, Upload]:
    upload: Upload | None = None
    try:
        more = True
        while more:
            data, more = await _piece(receive)
            reader.feed(data)
            if reader.form.filename is not None and upload is None:
                upload = await begin()
            if upload and (reader.waiting_bytes >= _WRITE_BYTES or not more):
                await asyncio.to_thread(upload.write, reader.taken())
        reader.finish()
        if upload is None:
            raise _invalid("file is missing. Send the file as a form field of this name.", "file")
    except BaseException:
        if upload:
            await asyncio.shield(asyncio.to_thread(upload.abandon))
        raise
    return reader.form, upload


async def _piece(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece of the body, and whether there is more."""
    async with asyncio.timeout(PIECE_TIMEOUT_S):
        message: Message = await receive()
    if message["type"] == "http.disconnect":
        raise RequestInvalid("The connection closed before the upload was complete.")
    return message.get("body", b""), bool(message.get("more_body"))


def _boundary(scope: Scope) -> bytes:
    given = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    kind, options = parse_options_header(given)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 200:
        raise _invalid("The body is not a multipart form. Send multipart/form-data with file and purpose.", None)
    return boundary


class _Reader:
    """Parses the form's bytes; keeps its fields and the file's data so far."""

    def __init__(self, boundary: bytes) -> None:
        self.form = UploadForm()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_name,
                "on_header_value": self._take_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )
        self._taken = bytearray()
        self._is_whole = False
        self._begin_part()

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise _invalid(f"The form cannot be parsed: {error}", None) from None

    def finish(self) -> None:
        if not self._is_whole:
            raise _invalid("The form ends in the middle of a part.", None)

    @property
    def waiting_bytes(self) -> int:
        return len(self._taken)

    def taken(self) -> bytes:
        """Return the file's data since the last call."""
        taken, self._taken = bytes(self._taken), bytearray()
        return taken

    def _begin_part(self) -> None:
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._value = bytearray()

    def _take_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = b"filename" in options
        if self._is_file:
            if self._name != "file":
                raise _invalid(
                    f"{self._name[:80]}: unexpected file. Send one file, as the field 'file'.", self._name[:80]
                )
            if self.form.filename is not None:
                raise _invalid("file is given twice", "file")
            self.form.filename = _filename(options[b"filename"])
        elif len(self.form.fields) >= _FIELDS_MAX:
            raise _invalid(f"The form has more than {_FIELDS_MAX} fields.", None)

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._taken += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > _FIELD_BYTES_MAX:
            raise _invalid(f"{self._name[:80]} is longer than {_FIELD_BYTES_MAX} bytes", self._name[:80])

    def _end_part(self) -> None:
        if not self._is_file:
            self.form.fields[self._name] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._is_whole = True


def _filename(given: bytes) -> str:
    """Return the name without folders and characters that a database or header may reject."""
    text = given.decode("utf-8", "replace").replace("\\", "/")
    name = "".join(letter for letter in PurePosixPath(text).name if letter.isprintable())
    return name[:_FILENAME_CHARS] or "file"


def _invalid(message: str, param: str | None) -> RequestInvalid:
    return RequestInvalid(message, param=param, code="invalid_form")
