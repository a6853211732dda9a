"""Measure the gain of drafts from the prompt: a stream whose answer quotes its prompt, against one that does not.

Both prompts are equally long, and both answers are as many words of the same model. Only the prompt's content
differs: it has the answer in phrases of 8 to 64 words, or nothing of it. A draft is right up to its phrase's end
and wrong there. Over a link of 20 ms, a right draft also saves round trips. The demo model, asked to repeat a
text, shows the tokens per pipeline pass of a real, if small, model.
"""

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from bench.chain import make_chain
from bench.engines import Endpoint, millrace
from bench.models import DEMO_MODEL
from bench.network import LINKS, emulated, local_places
from bench.work import REQUEST_TIMEOUT_S, Work, do, warm_up

PROMPT_TOKENS, TOKENS = 512, 128
PHRASES = (0, 8, 16, 32, 64)
# Pieces of text that come closer together belong to one pass.
PASS_GAP_S = 0.002
LOOPBACK = "loopback"
STORIES = (
    "The cat sat on the mat and the dog sat on the log. The cat",
    "Say it again: one red ball, two blue balls, three green balls. Say it again: one red ball,",
    "Name: Ann. Town: York. Name: Ben. Town: Bath. Name: Ann. Town:",
    "Once upon a time there was a small river. The small river ran to the sea. Once upon a time",
)


def main(arguments: list[str]) -> None:
    given = _parse(arguments)
    settings = {"MILLRACE_CLUSTER__PRECISION": given.precision}
    settings |= {f"MILLRACE_{name}": value for name, _, value in (pair.partition("=") for pair in given.set)}
    with tempfile.TemporaryDirectory(prefix="millrace-speculation-") as scratch, ExitStack() as stack:
        places, network = local_places(), None
        if given.link != LOOPBACK:
            network = stack.enter_context(emulated())
            places = network.places
        if given.models:
            model = make_chain(given.models)
            print(f"{model.name}, {given.precision}, {given.link}: {PROMPT_TOKENS} prompt, {TOKENS} output tokens")
            with millrace(Path(scratch) / "chain", model, places, settings, Path(scratch)) as endpoint:
                warm_up(endpoint, 0)
                if network:
                    network.shape(LINKS[given.link])
                _quote(endpoint, given.rounds)
        if network:
            network.shape(LINKS["open"])
        with millrace(Path(scratch) / "demo", DEMO_MODEL, places, {}, Path(scratch)) as endpoint:
            if network:
                network.shape(LINKS[given.link])
            _repeat(endpoint)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench speculation", description=__doc__)
    parser.add_argument("--models", type=Path, help="folder of the 0.5 B model; only the demo model by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", default="wan", choices=[LOOPBACK, *LINKS])
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a MILLRACE_ setting")
    return parser.parse_args(arguments)


def _quote(endpoint: Endpoint, rounds: int) -> None:
    """Compare prompts that contain the answer in phrases with prompts that contain nothing of it."""
    speeds: dict[int, list[float]] = {phrase: [] for phrase in PHRASES}
    for number in range(rounds):
        for phrase in PHRASES:
            work = Work(f"phrases of {phrase}", "", 1, PROMPT_TOKENS, TOKENS, phrase)
            row = do("millrace", endpoint, work, number)
            if row.speeds is None:
                raise SystemExit(f"{row.work}: {row.error}")
            speeds[phrase].append(row.speeds.stream_tokens_per_s)
    print("| quoted in phrases of | tokens/s | over nothing quoted (range) |")
    print("|---|---|---|")
    for phrase, measured in speeds.items():
        gains = [one / plain for one, plain in zip(measured, speeds[0], strict=True)]
        gain = f"{statistics.median(gains):.2f} ({min(gains):.2f}-{max(gains):.2f})"
        print(f"| {phrase or 'nothing'} | {statistics.median(measured):.1f} | {gain} |", flush=True)


def _repeat(endpoint: Endpoint) -> None:
    """Measure texts that ask for repetition."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    print("| demo model, continuing | tokens for each pass | tokens/s |")
    print("|---|---|---|")
    for story in STORIES:
        (answer,) = endpoint.ask([tokenizer.encode(story).ids], TOKENS, REQUEST_TIMEOUT_S)
        if answer.error:
            raise SystemExit(f"{story}: {answer.error}")
        took_s = answer.events_s[-1] - answer.events_s[0]
        passes = 1 + sum(later - at > PASS_GAP_S for at, later in pairwise(answer.events_s))
        print(f"| {story[-40:]} | {answer.tokens / passes:.2f} | {answer.tokens / took_s:.0f} |", flush=True)
