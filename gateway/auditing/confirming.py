"""Ask a trusted engine what a suspended seller failed: without that confirmation, no seller loses money."""

import asyncio

from gateway.auditing.asking import Unanswered
from gateway.auditing.freezing import Engine
from gateway.auditing.probes import Probe
from gateway.auditing.shelf import Shelf
from gateway.auditing.wares import Ware
from market.auditing.verdicts import Case, Decision, after_confirmation, decide


async def confirmed(shelf: Shelf, seller: str, model: str, engine: Engine) -> list[tuple[Ware, Decision]]:
    """Return what to do about each model that a seller lists, after asking the engine what it failed.

    `model` is the engine's name for the model that the seller claims to sell.
    """
    probes = {probe.id: probe for probe in await asyncio.to_thread(shelf.all_probes)}
    decisions = []
    for ware, case in await asyncio.to_thread(shelf.wares):
        if ware.seller == seller and case.failed:
            case = await _asked(case, probes, model, engine)
            await asyncio.to_thread(shelf.put, ware, case)
            decisions.append((ware, decide(case)))
    return decisions


async def _asked(case: Case, probes: dict[str, Probe], model: str, engine: Engine) -> Case:
    for id_ in sorted({audit.probe for audit in case.failed} & probes.keys()):
        try:
            heard = await engine(probes[id_].request(model, 0))
        except Unanswered:
            continue
        _, failed = probes[id_].look(heard.text, heard.told)
        if not failed:
            case = after_confirmation(case, id_)
    return case
