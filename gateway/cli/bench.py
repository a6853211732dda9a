"""`millrace bench`: the speed of a model, with one and with many concurrent requests."""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

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
from gateway.cli.command import Report, with_settings
from gateway.cli.completion import Model
from gateway.settings import Settings
from gateway.settings.base import LaneName

_CONCURRENCY_MAX = 256
_STEPS_MAX = 12
_WORDS = ("river", "stone", "wheel", "grain", "water", "miller", "bread", "field", "autumn", "lantern", "rope")
_COLUMNS = (
    "concurrency",
    "answers",
    "failed",
    "TTFT p50 s",
    "TTFT p95 s",
    "tok/s per request p50",
    "tok/s total",
    "lanes",
)


@dataclass(frozen=True, slots=True)
class BenchStep:
    """The results of one concurrency step; times in seconds."""

    concurrency: int
    answers: int
    failed: int
    first_p50_s: float
    first_p95_s: float
    each_tokens_per_s: float
    all_tokens_per_s: float
    lanes: tuple[str, ...]
    why: str = ""


@with_settings()
def bench(
    settings: Settings,
    model: Annotated[str | None, Model("Model; default: the only one available.")] = None,
    concurrency: Annotated[str, typer.Option(help="Concurrent requests per step, e.g. 1,4,16.")] = "1,2,4,8",
    requests: Annotated[
        int, typer.Option(help="Requests that each concurrent client sends per step.", min=1, max=1000)
    ] = 3,
    prompt_words: Annotated[
        int, typer.Option(help="Approximate prompt length in words.", min=1, max=100_000)
    ] = 128,
    max_tokens: Annotated[
        int, typer.Option(help="Maximum length of an answer, in tokens.", min=2, max=100_000)
    ] = 128,
    lane: Annotated[LaneName | None, typer.Option(help="Lane to use; default: chosen by the router.")] = None,
    url: Url = None,
    key_file: KeyFile = None,
) -> Report:
    """Measure time to first token and tokens per second. Example: millrace bench demo --concurrency 1,8"""
    steps = _steps(concurrency)
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0, "millrace": {"cache": False}}
    if lane:
        body["millrace"]["lane"] = lane
    with endpoint(settings, "bench", url, key_file) as where:
        if url is not None:
            del body["millrace"]  # other servers may reject an unknown field
        named = pick_model(where, model)
        done: list[BenchStep] = []
        live = Live(_table(named, done), console=output.talk, refresh_per_second=4, transient=True)

        def show(step: BenchStep) -> None:
            done.append(step)
            live.update(_table(named, done))

        with live if output.talk.is_terminal else nullcontext():
            asyncio.run(_all(where, body | {"model": named}, (steps, requests, prompt_words), show))
    why = next((step.why for step in done if step.why), "")
    if why:
        output.complain(f"{sum(step.failed for step in done)} requests failed or were incomplete: {why}")
    facts = {"model": named, "steps": [_facts(step) for step in done]}
    return Report(facts, lambda _: output.table(_COLUMNS, map(_row, done)), output.FAILED if why else 0)


async def _all(
    where: Endpoint, body: dict[str, Any], load: tuple[list[int], int, int], show: Callable[[BenchStep], None]
) -> None:
    """Run all steps. `load` has the steps, the requests per step and client, and the words per prompt."""
    steps, requests, words = load
    async with client(where) as asker:
        # Warm up first: loading, connecting and compiling belong to no step.
        await answer(asker, where, body | {"messages": _question(8), "max_tokens": 2}, _ignore)
        for concurrency in steps:
            left = iter([_question(words) for _ in range(concurrency * requests)])
            answered: list[Answered] = []
            failures: list[str] = []

            async def reader(
                left: Any = left, answered: list[Answered] = answered, failures: list[str] = failures
            ) -> None:
                for messages in left:
                    try:
                        answered.append(await answer(asker, where, body | {"messages": messages}, _ignore))
                    except AnswerBroken as error:
                        failures.append(str(error))

            began_s = time.perf_counter()
            await asyncio.gather(*(reader() for _ in range(concurrency)))
            show(step_of(concurrency, answered, failures, time.perf_counter() - began_s))


def step_of(concurrency: int, answered: Sequence[Answered], failures: Sequence[str], took_s: float) -> BenchStep:
    """Return the figures of one step; they are 0 if there were no answers."""
    firsts_s = sorted(each.first_s for each in answered)
    each = [one.tokens_per_s for one in answered if one.tokens_per_s]
    tokens = sum(one.completion_tokens for one in answered)
    return BenchStep(
        concurrency,
        len(answered),
        len(failures),
        statistics.median(firsts_s) if firsts_s else 0.0,
        firsts_s[min(len(firsts_s) - 1, int(0.95 * len(firsts_s)))] if firsts_s else 0.0,
        statistics.median(each) if each else 0.0,
        tokens / took_s if took_s > 0 else 0.0,
        tuple(sorted({one.lane for one in answered if one.lane})),
        failures[0] if failures else "",
    )


def _question(words: int) -> list[dict[str, str]]:
    """Return a prompt that starts with a random number, so that no cache has its beginning."""
    text = " ".join(random.choices(_WORDS, k=words))  # noqa: S311 - not for secrecy
    return [{"role": "user", "content": f"{random.getrandbits(64)}: go on with this story. {text}"}]


def _ignore(_: str) -> None:
    """Ignore a piece; only its time counts."""


def _steps(text: str) -> list[int]:
    """Return the steps; end the command unless the text is a short comma-separated list of numbers."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= _CONCURRENCY_MAX for word in words):
        output.fail(
            f"--concurrency {text}: must be numbers from 1 to {_CONCURRENCY_MAX}, e.g. 1,4,16", output.WRONG_USAGE
        )
    if len(words) > _STEPS_MAX:
        output.fail(f"--concurrency: at most {_STEPS_MAX} steps", output.WRONG_USAGE)
    return [int(word) for word in words]


def _table(model: str, done: Sequence[BenchStep]) -> Table:
    shown = Table(title=output.plain(model), box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        shown.add_column(column, justify="right")
    for step in done:
        shown.add_row(*map(str, _row(step)))
    return shown


def _row(step: BenchStep) -> tuple[object, ...]:
    return (
        step.concurrency,
        step.answers,
        step.failed,
        f"{step.first_p50_s:.3f}",
        f"{step.first_p95_s:.3f}",
        f"{step.each_tokens_per_s:.1f}",
        f"{step.all_tokens_per_s:.1f}",
        ", ".join(step.lanes),
    )


def _facts(step: BenchStep) -> dict[str, Any]:
    return {
        "concurrency": step.concurrency,
        "answers": step.answers,
        "failed": step.failed,
        "first_token_p50_s": round(step.first_p50_s, 4),
        "first_token_p95_s": round(step.first_p95_s, 4),
        "tokens_per_s_each": round(step.each_tokens_per_s, 1),
        "tokens_per_s_all": round(step.all_tokens_per_s, 1),
        "lanes": list(step.lanes),
    }
