"""The state of the ledger: every rule it keeps, its signed blocks, and a verification on request."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from accounting.ledger.health import RULES
from gateway.admin.fields import Facts
from gateway.admin.ledger_checks import CHECKPOINT, show_blocks, show_health
from gateway.app_state import Ledger, Storage, Verifier
from gateway.console.access import Operator, Visitor, refuse_weak_key
from gateway.console.forms import Form, pressed, read_form, submit
from gateway.console.renderer import page, partial

BLOCKS_SHOWN = 10
VERIFY_S = 20
"""Seconds of reading per verification; the next one continues from there."""

router = APIRouter(prefix="/ledger")

Block = Annotated[int | None, Query(ge=1, le=2**62)]


class VerifyForm(BaseModel):
    """`known` is a checkpoint saved elsewhere: the ledger must still contain it."""

    from_block: Annotated[int, Field(ge=1, le=2**62)] = 1
    known: Annotated[str | None, Field(max_length=100, pattern=CHECKPOINT)] = None


@router.get("")
async def show(visitor: Operator, ledger: Ledger, storage: Storage, block: Block = None) -> Response:
    """Show the ledger with the newest blocks, or those up to `block`."""
    refuse_weak_key(visitor)
    health = await show_health(ledger, storage.trouble, deep=False)
    return await _page(visitor, ledger, health, block)


@router.post("/check")
async def check_rules(visitor: Operator, ledger: Ledger, storage: Storage) -> Response:
    """Check every rule now, including those that sum all entries; at most once a minute."""
    await pressed(visitor)
    return await _page(visitor, ledger, await show_health(ledger, storage.trouble, deep=True))


@router.post("/verify")
async def verify_blocks(visitor: Operator, verifier: Verifier) -> Response:
    form = await read_form(visitor, VerifyForm)

    verdict, form = await submit(
        form,
        lambda fields: verifier.verify(from_block=fields.from_block, known=fields.known, limit_s=VERIFY_S),
    )
    status = 200 if verdict is not None else 400
    return partial("balance/verdict.html", visitor, status, verdict=verdict, form=form)


async def _page(visitor: Visitor, ledger: Ledger, health: Facts, block: int | None = None) -> Response:
    newest = ledger.checkpoint.n if ledger.checkpoint else 0
    last = min(block or newest, newest)
    # The oldest page has the remaining blocks, without repeating any.
    rows = min(max(1, last), BLOCKS_SHOWN)
    proofs = await show_blocks(ledger, last - rows if last else 0, rows)
    form: Form[VerifyForm] = Form()
    return page(
        "balance/ledger.html",
        visitor,
        health=health,
        rules=_rules(ledger, health),
        looked_s=next(iter(ledger.inspection.age_s().values()), None),
        blocks=[_block(block) for block in reversed(proofs["blocks"])],
        checkpoint=proofs["checkpoint"],
        older=last - BLOCKS_SHOWN,
        is_newest=last == newest,
        form=form,
        tab="ledger",
    )


def _rules(ledger: Ledger, health: Facts) -> list[dict[str, Any]]:
    """Return each rule with its state: `holds`, `broken`, or `accepted` if all violations were accepted."""
    last = {name: bool(is_broken) for (name,), is_broken in ledger.inspection.by_rule().items()}
    found = {each["rule"]: (each, "broken") for each in health["broken"]}
    for each in health["accepted"]:
        found.setdefault(each["rule"], (each, "accepted"))
    shown = []
    for name, rule in RULES.items():
        facts, state = found.get(name, ({}, ""))
        if not state:
            state = "broken" if last.get(name) and not health["deep"] else "holds"
            if name not in last and not health["deep"] and not rule.is_shallow:
                state = "not checked yet"
        shown.append({"name": name, "meaning": rule.meaning, "state": state, "where": facts.get("where", [])})
    # Broken rules come first.
    return sorted(shown, key=lambda one: {"broken": 0, "accepted": 1, "not checked yet": 2}.get(one["state"], 3))


def _block(block: Facts) -> Facts:
    return block | {"made_at_ns": int(block["made_ns"])}
