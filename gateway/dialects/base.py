"""What an API's dialect is to the edge: how its requests become ours, and how our answers become its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import ApiError
from gateway.openai import Kind, Request


@dataclass(frozen=True, slots=True)
class Question:
    """A request in our own shape: what lanes read, and the OpenAI-shaped bytes that go to backends."""

    kind: Kind
    request: Request
    raw: bytes
    content_type: str = "application/json"


class Writer(Protocol):
    """Turns an answer in OpenAI's shape into another API's, as its bytes pass. One is made for each request."""

    content_type: str

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes of the answer; returns what the caller gets now. Whole answers are kept until `end`."""

    def end(self) -> bytes:
        """The answer was whole: what is still to be said."""


@dataclass(frozen=True, slots=True)
class Route:
    """One hot route. `read` raises RequestInvalid; without a `writer` answers pass as they are.

    `error_body` and `error_event` say an error as the API's clients expect it, in place of an answer and as the
    end of a stream.
    """

    path: str
    read: Callable[[bytes], Question]
    writer: Callable[[Question, str], Writer] | None = None
    error_body: Callable[[ApiError], bytes] = ApiError.body
    error_event: Callable[[ApiError], bytes] = ApiError.event
