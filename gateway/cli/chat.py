"""`millrace chat`: a conversation in the terminal, with lane and speed of each answer."""

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.chat_request import (
    AnswerBroken,
    Answered,
    Endpoint,
    KeyFile,
    Url,
    answer,
    client,
    endpoint,
    pick_model,
)
from gateway.cli.command import with_settings
from gateway.cli.completion import Model
from gateway.settings import Settings
from gateway.settings.base import LaneName

_LINE_CHARS_MAX = 2**20
# Limit of messages kept of a long conversation; the system message does not count.
_HISTORY_MAX = 200

Message = dict[str, str]


@with_settings()
def chat(
    settings: Settings,
    model: Annotated[str | None, Model("Model; default: the only one available.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    lane: Annotated[LaneName | None, typer.Option(help="Lane to use; default: chosen by the router.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum length of an answer, in tokens.", min=1)] = None,
    url: Url = None,
    key_file: KeyFile = None,
    *,
    as_json: bool,
) -> None:
    """Chat with a model; lines from a pipe are sent one by one. Example: millrace chat demo"""
    extras: dict[str, Any] = {"max_tokens": max_tokens} if max_tokens else {}
    if lane:
        extras["millrace"] = {"lane": lane}
    with endpoint(settings, "chat", url, key_file) as where:
        named = pick_model(where, model)
        if sys.stdin.isatty():
            output.say((named, "bold"), "; empty line or Ctrl-D to quit")
        _converse(where, {"model": named} | extras, system, as_json=as_json)


def _converse(where: Endpoint, body: dict[str, Any], system: str | None, *, as_json: bool) -> None:
    """Run the conversation. Ctrl-C stops an answer; at the prompt it ends the conversation."""
    before: list[Message] = [{"role": "system", "content": system}] if system else []
    turns: list[Message] = []
    on_piece = _ignore if as_json else _show
    with asyncio.Runner() as runner:
        while question := _next_line():
            messages = [*before, *turns, {"role": "user", "content": question}]
            try:
                answered = runner.run(_one(where, body | {"messages": messages}, on_piece))
            except AnswerBroken as error:
                output.say(("error:", "bold red"), f" {error}; try again")
                continue
            except KeyboardInterrupt:
                output.say("\n", ("stopped; press Ctrl-C again to quit", "dim"))
                continue
            turns = [*messages[len(before) :], {"role": "assistant", "content": answered.text}][-_HISTORY_MAX:]
            _tell(question, answered, as_json=as_json)


async def _one(where: Endpoint, body: dict[str, Any], on_piece: Callable[[str], None]) -> Answered:
    async with client(where) as asker:
        return await answer(asker, where, body, on_piece)


def _ignore(_: str) -> None:
    """Ignore a piece: programs get the complete answer at the end."""


def _show(piece: str) -> None:
    """Print a piece at once, without control characters."""
    sys.stdout.write("".join(c if c in "\n\t" else output.plain(c) for c in piece))
    sys.stdout.flush()


def _tell(question: str, answered: Answered, *, as_json: bool) -> None:
    if as_json:
        output.data(
            {
                "question": question,
                "answer": answered.text,
                "model": answered.model,
                "lane": answered.lane,
                "prompt_tokens": answered.prompt_tokens,
                "completion_tokens": answered.completion_tokens,
                "first_token_s": round(answered.first_s, 4),
                "tokens_per_s": round(answered.tokens_per_s, 1),
            }
        )
        return
    sys.stdout.write("\n")
    sys.stdout.flush()
    facts = [answered.lane or answered.model, f"{answered.completion_tokens} tokens"]
    if answered.tokens_per_s:
        facts.append(f"{answered.tokens_per_s:.1f} tok/s")
    facts.append(f"TTFT {answered.first_s:.2f} s")
    output.say((" · ".join(facts), "dim"))


def _next_line() -> str:
    """Return the next message; "" at the end."""
    if sys.stdin.isatty():
        try:
            if sys.stdout.isatty():
                return input("> ").strip()
            output.talk.print("> ", end="")
            return input().strip()
        except (EOFError, KeyboardInterrupt):
            return ""
    return next((text for line in sys.stdin if (text := line[:_LINE_CHARS_MAX].strip())), "")
