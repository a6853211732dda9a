"""The catalogue of cheats: what audits of each show, by real models' answers, and requests simulated from that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from random import Random

from cluster.compute.stage_model import StageModel
from market.protocol.audits.canaries import TOKENS, Canary, failings, freeze
from market.protocol.audits.logprobs import TokenLogprob
from market.protocol.audits.needle import Needle, is_found
from market.protocol.audits.rates import FIRST_REQUESTS, audit_rate
from market.protocol.audits.sequential import Kind
from market.protocol.audits.verdicts import Audit, Case, after_audit, after_request, decide, new_case, next_kind
from tests.market.engines import Engine, ids_of, load, needles, questions, write_random, write_smaller
from tests.market.parties import NOW_MS
from tests.market.trade import DIGEST

NEEDLE_SHARE = 0.2
WINDOW_TOKENS = 128
CANNED = "That is a good question. I am not sure, but I can tell you a story instead."

Answer = tuple[str, Sequence[TokenLogprob]]
Change = Callable[[str], str]


def text_of(told: Sequence[TokenLogprob]) -> str:
    return "".join(each.token for each in told)


@dataclass(frozen=True, slots=True)
class Shown:
    """Audits of one seller: what each canary and each needle comes to."""

    canaries: Sequence[Audit]
    needles: Sequence[Audit]

    def draw(self, chance: Random, kind: Kind | None = None) -> Audit:
        is_needle = chance.random() < NEEDLE_SHARE if kind is None else kind == "needle"
        return chance.choice(self.needles if is_needle else self.canaries)

    @property
    def failing_share(self) -> float:
        return sum(each.has_failed for each in self.canaries) / len(self.canaries)


@dataclass(slots=True)
class Bench:
    """Canaries frozen with fp32 and bf16, needles, and what sellers answer to them."""

    folder: Path
    count: int
    needle_count: int
    canaries: list[Canary] = field(default_factory=list)
    _prompts: list[list[int]] = field(default_factory=list)
    _needles: list[tuple[Needle, list[int]]] = field(default_factory=list)
    _answers: dict[StageModel, list[tuple[TokenLogprob, ...]]] = field(default_factory=dict)

    def freeze(self) -> None:
        asked = questions(self.count)
        prompts = [ids_of(each) for each in asked]
        runs = zip(*(load(precision).answers(prompts, TOKENS) for precision in ("fp32", "bf16")), strict=True)
        frozen = [
            freeze(f"c{n}", *each) for n, each in enumerate(zip(asked, map(len, prompts), runs, strict=True))
        ]
        self.canaries = [canary for canary in frozen if canary]
        self._prompts = [ids for ids, canary in zip(prompts, frozen, strict=True) if canary]
        self._needles = needles(self.needle_count)

    def shown(self, engine: Engine, *, change: Change = str, tells: bool = True, sharpest: int = 0) -> Shown:
        """What the engine's answers come to, each changed on its way; `sharpest` takes only so many canaries."""
        if engine.model not in self._answers:
            self._answers[engine.model] = engine.answers(self._prompts, TOKENS)
        answers = self._answers[engine.model]
        found = engine.answers([ids for _, ids in self._needles], 8)
        said = [
            (canary, change(text_of(told)), told if tells else ())
            for canary, told in zip(self.canaries, answers, strict=True)
        ]
        if sharpest:
            said = sorted(said, key=lambda each: each[0].margin_nats)[:sharpest]
        kind: Kind = "logprob" if tells else "canary"
        return Shown(
            [_audit(kind, canary.id, failings(canary, text, told)) for canary, text, told in said],
            [
                _needle_audit(needle, change(text_of(told)))
                for (needle, _), told in zip(self._needles, found, strict=True)
            ],
        )

    def catalogue(self) -> Mapping[str, Callable[[], Shown]]:
        """Every seller of the catalogue."""
        honest, int4, smaller = load("bf16"), load("int4"), load("bf16", write_smaller(self.folder / "less", 7))
        sharpest = max(4, self.count // 16)
        return {
            "honest, bf16": lambda: self.shown(honest),
            "honest, fp16": lambda: self.shown(load("fp16")),
            "another model": lambda: self.shown(load("bf16", write_random(self.folder / "random")), tells=False),
            "a smaller model": lambda: self.shown(smaller),
            "a smaller model, no log-probabilities": lambda: self.shown(smaller, tells=False),
            "int4 for bf16": lambda: self.shown(int4),
            "int4, no log-probabilities": lambda: self.shown(int4, tells=False, sharpest=sharpest),
            "int8 for bf16": lambda: self.shown(load("int8")),
            "canned answers": lambda: self.shown(honest, change=lambda _: CANNED, tells=False),
            "truncated context": lambda: self.shown(Engine(honest.model, WINDOW_TOKENS)),
            "padded tokens": lambda: self.shown(honest, change=lambda text: text + "\u200b" * 40, tells=False),
            "cut short": lambda: self.shown(honest, change=lambda text: text[: 2 * len(text) // 3], tells=False),
        }


def _audit(kind: Kind, probe: str, failed: tuple[str, ...]) -> Audit:
    return Audit(kind, probe, NOW_MS, DIGEST, failed)


def _needle_audit(needle: Needle, answer: str) -> Audit:
    return _audit("needle", needle.answer, () if is_found(needle, answer) else ("what it was told is forgotten",))


Draw = Callable[[Random, Kind | None], Audit]


def mixed(honest: Shown, other: Shown, share: float) -> Draw:
    """A seller who takes another model for some of its requests."""
    return lambda chance, kind: (other if chance.random() < share else honest).draw(chance, kind)


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
        case = after_audit(case, draw(chance, next_kind(case)))
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
