"""One question to an OpenAI-compatible address, and how its answer came: lane, tokens, seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.running import base_url, borrowed_key, refuse
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
    typer.Option(help="An OpenAI base URL elsewhere, with its /v1; the gateway of the data folder without."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help=f"A file with the API key for --url; {_KEY_VARIABLE} or a prompt without."),
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API is, and the key for it."""

    base_url: str
    key: str
    is_own: bool = False
    """No proxy of the environment is in the way to the own gateway: it would get the key."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Times begin with the question; `completion_tokens` is the server's count, else that of the pieces."""

    text: str
    lane: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    first_s: float
    whole_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of the answer after its first token; of all of it where it came at once."""
        after_s = self.whole_s - self.first_s
        if self.completion_tokens > 1 and after_s >= _AT_ONCE_S:
            return (self.completion_tokens - 1) / after_s
        return self.completion_tokens / self.whole_s if self.whole_s > 0 else 0.0


class AnswerBroken(Exception):
    """The answer did not come to its end; the message says why."""


@contextmanager
def endpoint(settings: Settings, purpose: str, url: str | None, key_file: Path | None) -> Iterator[Endpoint]:
    """Somebody else's, or the running gateway with a key that lasts as long as the command."""
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
    asker: "httpx.AsyncClient", where: Endpoint, body: dict[str, Any], hear: Callable[[str], None]
) -> Answered:
    """Ask for a streamed chat completion; `hear` gets every piece of it. Raises AnswerBroken.

    Ends the command where the question is refused.
    """
    import httpx

    from gateway.sse import EventSplitter

    began_s, heard, events = time.perf_counter(), _Heard(), EventSplitter()
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
                    if piece := heard.take(event, time.perf_counter()):
                        hear(piece)
    except httpx.ConnectError as error:
        output.fail(f"{where.base_url} does not answer: {error}", output.UNREACHABLE)
    except httpx.HTTPError as error:
        raise AnswerBroken(f"the answer broke off: {type(error).__name__} {error}") from None
    ended_s = time.perf_counter()
    return Answered(
        "".join(heard.pieces),
        lane,
        heard.model,
        heard.prompt_tokens,
        heard.completion_tokens or len(heard.pieces),
        (heard.first_s or ended_s) - began_s,
        ended_s - began_s,
    )


class _Heard:
    """What the events of one stream have said."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.model = ""
        self.first_s: float | None = None
        self.prompt_tokens = self.completion_tokens = 0

    def take(self, event: bytes, now_s: float) -> str:
        """The piece of text in it. Raises AnswerBroken for an error event."""
        import orjson

        if event == b"[DONE]":
            return ""
        try:
            facts: dict[str, Any] = orjson.loads(event)
        except orjson.JSONDecodeError:
            raise AnswerBroken("the stream has an event that is no JSON") from None
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
    """The model that was named, or the only one there is; ends the command where that is unclear."""
    if model is not None:
        return model
    loaded, others = _models(where)
    names = [*loaded, *others]
    if not names:
        output.fail("this gateway has no model; `millrace run MODEL` or `millrace pool add NAME URL` gives it one")
    if len(names) > 1:
        output.fail(f"name the model: {', '.join(names[:_NAMED_MAX])}", output.WRONG_USAGE)
    return names[0]


def _models(where: Endpoint) -> tuple[list[str], list[str]]:
    """Those that chat: loaded ones, and others."""
    import httpx

    try:
        response = httpx.get(
            f"{where.base_url}/models",
            headers={"authorization": f"Bearer {where.key}"},
            timeout=30.0,
            trust_env=not where.is_own,
        )
    except httpx.HTTPError as error:
        output.fail(f"{where.base_url} does not answer: {error}", output.UNREACHABLE)
    if response.status_code != 200:
        refuse(response)
    listed: list[dict[str, Any]] = response.json()["data"]
    ours = [(entry["id"], entry.get("millrace") or {}) for entry in listed]
    chats = [(name, extras) for name, extras in ours if "chat" in extras.get("can", ["chat"])]
    is_loaded = {name: bool(extras.get("is_loaded", True)) for name, extras in chats}
    return [name for name in is_loaded if is_loaded[name]], [name for name in is_loaded if not is_loaded[name]]


def _key(file: Path | None) -> str:
    import os

    if file is not None:
        try:
            return file.read_text()[:_KEY_BYTES_MAX].strip()
        except (OSError, UnicodeDecodeError) as error:
            output.fail(f"--key-file {file}: {getattr(error, 'strerror', None) or 'no text'}", output.WRONG_USAGE)
    if key := os.environ.get(_KEY_VARIABLE):
        return key
    if not sys.stdin.isatty():
        output.fail(f"--url needs a key: set {_KEY_VARIABLE} or give --key-file", output.WRONG_USAGE)
    return str(typer.prompt("API key", hide_input=True, err=True))
