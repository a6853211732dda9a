"""Making canaries: what engines that are known to be honest all answer. An own machine with the model is best."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf
from typing import Any

from gateway.auditing.asking import Heard, Unanswered
from gateway.auditing.probes import Probe, plain_request
from market.auditing.canaries import Canary, freeze, freeze_texts

Engine = Callable[[Mapping[str, Any]], Awaitable[Heard]]
"""Answers a chat request; raises Unanswered. The most exact one first; two at least, or one asked twice."""


async def frozen(
    sold_as: str, model: str, prompts: Iterable[str], engines: Sequence[Engine], *, is_one_engine: bool = False
) -> list[Probe]:
    """The canaries that prompts make for listings of a kind (`probes.sold_as`).

    Prompts are one's own traffic with consent, or templates of it; those that engines disagree about are left out.
    How far honest engines are apart is nothing that one of them asked twice shows (`is_one_engine`): its log
    probabilities say which tokens every honest engine chooses, and are not what others are held to.
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


def _canary(id_: str, prompt: str, heard: Sequence[Heard]) -> Canary | None:
    """With log-probabilities where every engine tells them and they bear it out, else of the texts alone."""
    told = [each.told for each in heard]
    canary = freeze(id_, prompt, 0, told) if all(told) else None
    return canary or freeze_texts(id_, prompt, 0, [each.text for each in heard])


def _of_one(id_: str, prompt: str, heard: Sequence[Heard]) -> Canary | None:
    """What the engine is sure of, where it tells; else its whole text, which others may say otherwise."""
    told = [each.told for each in heard]
    if not all(told):
        return freeze_texts(id_, prompt, 0, [each.text for each in heard])
    canary = freeze(id_, prompt, 0, told)
    return replace(canary, reference=(), tolerance_nats=inf) if canary else None
