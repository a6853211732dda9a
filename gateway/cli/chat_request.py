"""Sends one message to an OpenAI-compatible address and measures the answer: lane, tokens, seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.gateway_client import base_url, borrowed_key, refuse, send, unreachable
from gateway.settings import Settings

if TYPE_CHECKING:
    import httpx

FIRST_BYTE_S = 600.0
_KEY_BYTES_MAX = 4096
_NAMED_MAX = 10
_AT_ONCE_S = 0.02
_KEY_VARIABLE = "OPENAI_API_KEY"

Url = Annotated[
    str | None,
    typer.Option(help="Another OpenAI base URL, including /v1; default: this gateway."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help=f"File with the API key for --url; default: {_KEY_VARIABLE}, or a prompt."),
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the API, and its key."""

    base_url: str
    key: str
    is_own: bool = False
    """True for this machine's own gateway: requests bypass environment proxies, which would see the key."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Times start with the request; `completion_tokens` is the server's count, else the number of pieces."""

    text: str
    lane: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    first_s: float
    whole_s: float

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token, or over the whole answer if it arrived at once."""
        after_s = self.whole_s - self.first_s
        if self.completion_tokens > 1 and after_s >= _AT_ONCE_S:
            return (self.completion_tokens - 1) / after_s
        return self.completion_tokens / self.whole_s if self.whole_s > 0 else 0.0


class AnswerBroken(Exception):
    """The answer is incomplete; the message has the reason."""


@contextmanager
def endpoint(settings: Settings, purpose: str, url: str | None, key_file: Path | None) -> Iterator[Endpoint]:
    """Yield another server's endpoint, or the running gateway with a key valid for this command."""
    if url is not None:
        yield Endpoint(url.rstrip("/"), _key(key_file))
        return
    here = base_url(settings)
    with borrowed_key(settings, purpose, "owner", lasts_s=86_400) as key:
        yield Endpoint(here, key, is_own=True)


def client(where: Endpoint) -> "httpx.AsyncClient":
    import httpx

    patience = httpx.Timeout(30.0, read=FIRST_BYTE_S)
    return httpx.AsyncClient(timeout=patience, limits=httpx.Limits(), trust_env=not where.is_own)


async def answer(
    asker: "httpx.AsyncClient", where: Endpoint, body: dict[str, Any], on_piece: Callable[[str], None]
) -> Answered:
    """Request a streamed chat completion and pass every piece to `on_piece`. Raises AnswerBroken.

    Ends the command if the request is rejected.
    """
    import httpx

    from runtime.sse import EventSplitter

    began_s, stream, events = time.perf_counter(), _Stream(), EventSplitter()
    question = body | {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"authorization": f"Bearer {where.key}"}
    try:
        async with asker.stream(
            "POST", f"{where.base_url}/chat/completions", json=question, headers=headers
        ) as response:
            if response.status_code != 200:
                await response.aread()
                refuse(response)
            lane = response.headers.get("x-millrace-lane", "")
            async for chunk in response.aiter_bytes():
                for event in events.feed(chunk):
                    if piece := stream.take(event, time.perf_counter()):
                        on_piece(piece)
    except httpx.ConnectError as error:
        unreachable(where.base_url, error, is_own=where.is_own)
    except httpx.HTTPError as error:
        raise AnswerBroken(
            f"the answer was interrupted ({type(error).__name__} {error}); send the message again"
        ) from None
    ended_s = time.perf_counter()
    return Answered(
        "".join(stream.pieces),
        lane,
        stream.model,
        stream.prompt_tokens,
        stream.completion_tokens or len(stream.pieces),
        (stream.first_s or ended_s) - began_s,
        ended_s - began_s,
    )


class _Stream:
    """The content of one stream's events so far."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.model = ""
        self.first_s: float | None = None
        self.prompt_tokens = self.completion_tokens = 0

    def take(self, event: bytes, now_s: float) -> str:
        """Return the event's text. Raises AnswerBroken for an error event."""
        import orjson

        if event == b"[DONE]":
            return ""
        try:
            facts: dict[str, Any] = orjson.loads(event)
        except orjson.JSONDecodeError:
            raise AnswerBroken("the stream has an event that is not JSON; send the message again") from None
        if "error" in facts:
            raise AnswerBroken(str(facts["error"].get("message", facts["error"])))
        self.model = facts.get("model") or self.model
        if usage := facts.get("usage"):
            self.prompt_tokens = int(usage.get("prompt_tokens", 0))
            self.completion_tokens = int(usage.get("completion_tokens", 0))
        deltas = [choice.get("delta") or {} for choice in facts.get("choices") or []]
        piece = "".join(delta.get("reasoning_content") or delta.get("content") or "" for delta in deltas)
        if piece:
            self.first_s = self.first_s or now_s
            self.pieces.append(piece)
        return piece


def pick_model(where: Endpoint, model: str | None) -> str:
    """Return the named model, or the only one; end the command if there are none or several."""
    if model is not None:
        return model
    loaded, others = _models(where)
    names = [*loaded, *others]
    if not names:
        output.fail(
            "this gateway has no models. Add one with `millrace run MODEL` or `millrace pool add NAME URL`"
        )
    if len(names) > 1:
        output.fail(
            f"several models are available; name one of {', '.join(names[:_NAMED_MAX])}", output.WRONG_USAGE
        )
    return names[0]


def _models(where: Endpoint) -> tuple[list[str], list[str]]:
    """Return the chat models: loaded ones, and others."""
    headers = {"authorization": f"Bearer {where.key}"}
    listed: list[dict[str, Any]] = send("GET", f"{where.base_url}/models", headers, is_own=where.is_own)["data"]
    models = [(entry["id"], entry.get("millrace") or {}) for entry in listed]
    chats = [(name, extras) for name, extras in models if "chat" in extras.get("can", ["chat"])]
    is_loaded = {name: bool(extras.get("is_loaded", True)) for name, extras in chats}
    return [name for name in is_loaded if is_loaded[name]], [name for name in is_loaded if not is_loaded[name]]


def _key(file: Path | None) -> str:
    import os

    if file is not None:
        try:
            return file.read_text()[:_KEY_BYTES_MAX].strip()
        except (OSError, UnicodeDecodeError) as error:
            output.fail(
                f"--key-file {file}: {getattr(error, 'strerror', None) or 'not a text file'}", output.WRONG_USAGE
            )
    if key := os.environ.get(_KEY_VARIABLE):
        return key
    if not sys.stdin.isatty():
        output.fail(f"--url needs an API key: set {_KEY_VARIABLE} or use --key-file", output.WRONG_USAGE)
    return str(typer.prompt("API key", hide_input=True, err=True))
