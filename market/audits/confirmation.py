"""Ask a trusted engine what a suspended seller failed: without that confirmation, no seller loses money."""

import asyncio

from market.audits.audit_client import Unanswered
from market.audits.audit_target import AuditTarget
from market.audits.own_engine import Engine
from market.audits.probe_store import ProbeStore
from market.audits.probes import Probe
from market.protocol.audits.canaries import failings
from market.protocol.audits.verdicts import Case, Decision, after_confirmation, decide


async def confirm_failures(
    probe_store: ProbeStore, seller: str, model: str, engine: Engine
) -> list[tuple[AuditTarget, Decision]]:
    """Return what to do about each model that a seller lists, after asking the engine what it failed.

    `model` is the engine's name for the model that the seller claims to sell.
    """
    probes = {probe.id: probe for probe in await asyncio.to_thread(probe_store.all_probes)}
    decisions = []
    for target, case in await asyncio.to_thread(probe_store.targets):
        if target.seller == seller and case.failed:
            case = await _confirmed(case, probes, model, engine)
            await asyncio.to_thread(probe_store.put, target, case)
            decisions.append((target, decide(case)))
    return decisions


async def _confirmed(case: Case, probes: dict[str, Probe], model: str, engine: Engine) -> Case:
    for id_ in sorted({audit.probe for audit in case.failed} & probes.keys()):
        try:
            heard = await engine(probes[id_].request(model, 0))
        except Unanswered:
            continue
        if not failings(probes[id_].canary, heard.text):
            case = after_confirmation(case, id_)
    return case
