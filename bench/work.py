"""Do one piece of work with an engine: streams of a kind over a link, checked word by word and timed."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.chain import Chain
from bench.engines import Endpoint
from bench.streams import Answer, Speeds, summarise

REQUEST_TIMEOUT_S = 240.0
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work: its requests, over which of bench.network's links.

    With `phrase`, the prompt contains the answer in phrases of that many words; without it, nothing of the answer.
    """

    name: str
    link: str
    streams: int
    prompt_tokens: int
    tokens: int
    phrase: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One engine's work in one round. If `speeds` is None, it failed, and `error` says why."""

    engine: str
    work: str
    round: int
    load: float = 0.0
    speeds: Speeds | None = None
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return values for a line of JSON, without the plan's facts, which are the same in every line."""
        values = asdict(replace(self, facts={}, speeds=None))
        speeds = {name: round(getattr(self.speeds, name), 3) for name in Speeds.__struct_fields__}
        return values | {"speeds": speeds if self.speeds else None}


def warm_up(endpoint: Endpoint, number: int) -> None:
    """Send one short request that is not measured."""
    prompt, _ = Chain().prompt(32, f"warm-up {number}")
    endpoint.ask([prompt], WARM_UP_TOKENS, REQUEST_TIMEOUT_S)


def do(engine: str, endpoint: Endpoint, work: Work, number: int) -> Measured:
    """Ask, check and measure. Within a round, every engine gets the same requests."""
    chain, prompts, expected = Chain(), [], []
    for stream in range(work.streams):
        seed = f"{work.name} {number} {stream}"
        if work.phrase:
            ids, at = chain.grounded_prompt(work.prompt_tokens, work.tokens, work.phrase, seed)
        else:
            ids, at = chain.prompt(work.prompt_tokens, seed)
        prompts.append(ids)
        expected.append(chain.text(chain.answer(at, work.tokens)))
    load = round(os.getloadavg()[0], 2)
    answers = endpoint.ask(prompts, work.tokens, REQUEST_TIMEOUT_S)
    error = _what_is_wrong(answers, expected)
    speeds = None if error else summarise(answers)
    return Measured(
        engine=engine,
        work=work.name,
        round=number,
        load=load,
        speeds=speeds,
        error=error,
        facts=endpoint.facts,
    )


def _what_is_wrong(answers: Sequence[Answer], expected: Sequence[str]) -> str:
    """Return "" if every stream was complete with the model's own words, else what is wrong."""
    if errors := [answer.error for answer in answers if answer.error]:
        return f"{len(errors)} of {len(answers)} streams: {errors[0]}"
    wrong = sum(answer.text.split() != text.split() for answer, text in zip(answers, expected, strict=True))
    return f"{wrong} of {len(answers)} answers are not the model's" if wrong else ""
