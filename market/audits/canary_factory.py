"""Make canaries: prompts that one of our own machines with the model answers twice alike."""

from collections.abc import Iterable
from hashlib import sha256

from market.audits.audit_client import Unanswered
from market.audits.own_engine import Engine, EngineAnswer
from market.audits.probes import Probe, plain_request
from market.protocol.audits.canaries import Canary, freeze, freeze_texts


async def freeze_canaries(sold_as: str, model: str, prompts: Iterable[str], engine: Engine) -> list[Probe]:
    """Return the canaries that prompts make for listings of a kind (`probes.sold_as`).

    Prompts are our own traffic with consent, or templates of it. Each is asked twice: an
    engine whose answers begin differently is no reference.
    """
    probes = []
    for prompt in prompts:
        request = plain_request(model, prompt)
        try:
            heard = [await engine(request) for _ in range(2)]
        except Unanswered:
            continue
        if canary := _canary(prompt, heard):
            probes.append(Probe(sha256(f"{sold_as}\n{prompt}".encode()).hexdigest()[:32], sold_as, canary))
    return probes


def _canary(prompt: str, heard: list[EngineAnswer]) -> Canary | None:
    """Return a canary of the tokens that the engine is sure of, if it tells; else of its whole text, which others
    may vary.
    """
    if all(each.tokens for each in heard):
        return freeze(prompt, [each.tokens for each in heard])
    return freeze_texts(prompt, [each.text for each in heard])
