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

    `content_type` is that of `raw`: JSON, or a multipart form whose files pass unchanged. `warning` names the part
    of the request that is not used.
    """

    kind: Kind
    request: Request
    raw: bytes
    content_type: str = "application/json"
    warning: str = ""


class Writer(Protocol):
    """Translates an answer from OpenAI's shape to another API's, as its bytes pass. Each request has its own.

    It turns an upstream's error event, or an incomplete answer, into the dialect's error, and writes nothing after
    it.
    """

    content_type: str
    broken: ApiError | None
    """The error of a failed answer, if any: a whole answer may still become that error with its status."""

    keeps_calls: bool
    """Whether tool calls were received that are sent only when the answer ends."""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes of the answer; returns the bytes to send now. Whole answers are kept until `end`."""

    def end(self) -> bytes:
        """Return the remaining bytes after the upstream has ended."""

    def fail(self, error: ApiError) -> bytes:
        """Return the final bytes of an answer that broke off."""


@dataclass(frozen=True, slots=True)
class Route:
    """One hot route. `read` raises RequestInvalid; without a `writer` answers pass unchanged.

    `resolve` completes a question from its caller's stored responses; it waits only if the question refers to one.
    `error_body` and `error_event` write an error as the API's clients expect it: in place of an answer, and as the
    end of a stream without a writer.
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
