"""Make canaries: prompts on which trusted engines agree. A machine of our own with the model is best."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf
from typing import Any

from market.audits.audit_client import AuditAnswer, Unanswered
from market.audits.probes import Probe, plain_request
from market.protocol.audits.canaries import Canary, freeze, freeze_texts

Engine = Callable[[Mapping[str, Any]], Awaitable[AuditAnswer]]
"""Answers a chat request; raises Unanswered. The most exact engine first; at least two, or one asked twice."""


async def freeze_canaries(
    sold_as: str, model: str, prompts: Iterable[str], engines: Sequence[Engine], *, is_one_engine: bool = False
) -> list[Probe]:
    """Return the canaries that prompts make for listings of a kind (`probes.sold_as`).

    Prompts are our own traffic with consent, or templates of it; those on which engines disagree are left out. One
    engine asked twice (`is_one_engine`) does not show how far trusted engines differ. Its log probabilities show
    which tokens every trusted engine chooses, but others are not compared with them.
    """
    probes = []
    for prompt in prompts:
        request = plain_request(model, prompt)
        try:
            heard = [await engine(request) for engine in engines]
        except Unanswered:
            continue
        id_ = sha256(f"{sold_as}\n{prompt}".encode()).hexdigest()[:32]
        canary = _of_one(id_, prompt, heard) if is_one_engine else _canary(id_, prompt, heard)
        if canary:
            probes.append(Probe(id_, sold_as, canary=canary))
    return probes


def _canary(id_: str, prompt: str, heard: Sequence[AuditAnswer]) -> Canary | None:
    """Return a canary with log probabilities if every engine gives them and they agree, else of the texts only."""
    logprobs = [each.logprobs for each in heard]
    canary = freeze(id_, prompt, 0, logprobs) if all(logprobs) else None
    return canary or freeze_texts(id_, prompt, 0, [each.text for each in heard])


def _of_one(id_: str, prompt: str, heard: Sequence[AuditAnswer]) -> Canary | None:
    """Return a canary of the tokens that the engine is sure of, if it tells; else of its whole text, which others
    may vary.
    """
    logprobs = [each.logprobs for each in heard]
    if not all(logprobs):
        return freeze_texts(id_, prompt, 0, [each.text for each in heard])
    canary = freeze(id_, prompt, 0, logprobs)
    return replace(canary, reference=(), tolerance_nats=inf) if canary else None
