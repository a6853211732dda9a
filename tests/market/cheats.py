"""The catalogue of cheats: what audits of each show, by real models' answers, and requests simulated from that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from random import Random

from cluster.compute.stage_model import StageModel
from market.protocol.audits.canaries import TOKENS, Canary, failings, freeze
from market.protocol.audits.logprobs import GreedyToken
from market.protocol.audits.rates import FIRST_REQUESTS, audit_rate
from market.protocol.audits.verdicts import Audit, Case, after_audit, after_request, decide, new_case
from tests.market.engines import Engine, ids_of, load, questions, write_random, write_smaller
from tests.market.parties import NOW_MS
from tests.market.trade import DIGEST

CANNED = "That is a good question. I am not sure, but I can tell you a story instead."

Change = Callable[[str], str]


def text_of(told: Sequence[GreedyToken]) -> str:
    return "".join(each.token for each in told)


@dataclass(frozen=True, slots=True)
class Shown:
    """Audits of one seller: what each canary comes to."""

    canaries: Sequence[Audit]

    def draw(self, chance: Random) -> Audit:
        return chance.choice(self.canaries)


@dataclass(slots=True)
class Bench:
    """Canaries frozen with fp32 and bf16, and what sellers answer to them."""

    folder: Path
    count: int
    canaries: list[Canary] = field(default_factory=list)
    _prompts: list[list[int]] = field(default_factory=list)
    _answers: dict[StageModel, list[tuple[GreedyToken, ...]]] = field(default_factory=dict)

    def freeze(self) -> None:
        asked = questions(self.count)
        prompts = [ids_of(each) for each in asked]
        runs = zip(*(load(precision).answers(prompts, TOKENS) for precision in ("fp32", "bf16")), strict=True)
        frozen = [freeze(*each) for each in zip(asked, runs, strict=True)]
        self.canaries = [canary for canary in frozen if canary]
        self._prompts = [ids for ids, canary in zip(prompts, frozen, strict=True) if canary]

    def shown(self, engine: Engine, *, change: Change = str) -> Shown:
        """What the engine's answers come to, each changed on its way."""
        if engine.model not in self._answers:
            self._answers[engine.model] = engine.answers(self._prompts, TOKENS)
        answers = zip(self.canaries, self._answers[engine.model], strict=True)
        return Shown([_audit(canary, change(text_of(told))) for canary, told in answers])

    def catalogue(self) -> Mapping[str, Callable[[], Shown]]:
        """Every seller of the catalogue."""
        honest, smaller = load("bf16"), load("bf16", write_smaller(self.folder / "less", 7))
        return {
            "honest, bf16": lambda: self.shown(honest),
            "honest, fp16": lambda: self.shown(load("fp16")),
            "another model": lambda: self.shown(load("bf16", write_random(self.folder / "random"))),
            "a smaller model": lambda: self.shown(smaller),
            "canned answers": lambda: self.shown(honest, change=lambda _: CANNED),
            "padded tokens": lambda: self.shown(honest, change=lambda text: text + "\u200b" * 40),
            "cut short": lambda: self.shown(honest, change=lambda text: text[: 2 * len(text) // 3]),
        }


def _audit(canary: Canary, text: str) -> Audit:
    return Audit("canary", canary.prompt, NOW_MS, DIGEST, failings(canary, text))


Draw = Callable[[Random], Audit]


def mixed(honest: Shown, other: Shown, share: float) -> Draw:
    """A seller who takes another model for some of its requests."""
    return lambda chance: (other if chance.random() < share else honest).draw(chance)


def caught_after(draw: Draw, chance: Random, *, jobs: int, is_probation: bool = True) -> int | None:
    """With which of its requests a seller is suspended, audits among them; None if with none of so many."""
    case = new_case(is_probation=is_probation)
    if not is_probation:
        case = _requests(case, FIRST_REQUESTS)
    job = 0
    while True:
        case, gap = _until_audit(case, chance)
        job += gap
        if job > jobs:
            return None
        case = after_audit(case, draw(chance))
        if decide(case).action == "suspend":
            return job


def _until_audit(case: Case, chance: Random) -> tuple[Case, int]:
    """Requests up to the next audit: one by one as long as the rate is about to change."""
    gap = 0
    while case.watched.requests < FIRST_REQUESTS:
        gap += 1
        case = after_request(case)
        if chance.random() < audit_rate(case.watched):
            return case, gap
    further = 1 + int(log(1 - chance.random()) / log(1 - audit_rate(case.watched)))
    return _requests(case, further), gap + further


def _requests(case: Case, count: int) -> Case:
    """What `after_request` comes to, so many times."""
    return replace(case, watched=replace(case.watched, requests=case.watched.requests + count))
