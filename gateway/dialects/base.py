"""The interface of an API dialect: it translates the dialect's requests to OpenAI's API and answers back."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from gateway.dialects.openai import Kind, Request
from gateway.dialects.refusals import RefusalWriter
from gateway.dialects.stored_responses.store import ResponseStore
from gateway.identity.caller import Caller
from runtime.http.api_error import ApiError


class Question(Struct, frozen=True):
    """A request in OpenAI's shape: the fields that lanes read, and the bytes that go to backends.

    `content_type` is that of `raw`: JSON, or a multipart form whose files pass as they came. `warning` says what
    part of the request is not used.
    """

    kind: Kind
    request: Request
    raw: bytes
    content_type: str = "application/json"
    warning: str = ""


class Writer(Protocol):
    """Turns an answer in OpenAI's shape into another API's, as its bytes pass. One is made for each request.

    An upstream's own error event, and an answer that turns out not to be whole, become the dialect's error by
    themselves; nothing is said after it.
    """

    content_type: str
    broken: ApiError | None
    """The error of a failed answer, if any: a whole answer may still become that error with its status."""

    keeps_calls: bool
    """Calls of tools that were fed are said later, if the answer comes to its end."""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes of the answer; returns the bytes to send now. Whole answers are kept until `end`."""

    def end(self) -> bytes:
        """Return the remaining bytes after the upstream has ended."""

    def fail(self, error: ApiError) -> bytes:
        """Return the final bytes of an answer that broke off."""


@dataclass(frozen=True, slots=True)
class Route:
    """One hot route. `read` raises RequestInvalid; without a `writer` answers pass as they are.

    `resolve` completes a question from what is stored of its caller; it only waits where the question points at
    something stored. `error_body` and `error_event` say an error as the API's clients expect it, in place of an
    answer and as the end of a stream that no writer writes.
    """

    path: str
    read: Callable[[bytes], Question]
    writer: Callable[[Question, str], Writer] | None = None
    error_body: Callable[[ApiError], bytes] = ApiError.body
    error_event: Callable[[ApiError], bytes] = ApiError.event
    resolve: Callable[[ResponseStore, Caller, Question], Awaitable[Question]] | None = None

    def writer_for(self, question: Question, request_id: str, status: int) -> Writer | None:
        """Return the writer for an answer of that status; None if the answer passes unchanged."""
        if self.writer is None:
            return None
        if status != 200:
            return RefusalWriter(status, self.error_body)
        return self.writer(question, request_id)
