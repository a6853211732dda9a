"""Seller status: identities, audits, dispute history; disputes, and opening one."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from gateway.app_state import Marketplace
from gateway.console.access import Visitor
from gateway.console.forms import Form, submit_form
from gateway.console.pages.selling.access import PATH, Seller, Sources, here, settings_now
from gateway.console.pages.selling.accounts import account_of, standing_of
from gateway.console.renderer import go, page
from market.protocol.channels.terms import LANES_MAX
from market.protocol.listings.listing import Tier
from runtime.data_folder import DataFolder
from runtime.errors import NotFound

if TYPE_CHECKING:
    from gateway.console.pages.selling.records import AgentFiles
    from market.marketplace.marketplace import Marketplace
    from market.protocol.audits.findings import AuditFinding

STANDING = f"{PATH}/standing"
# A form holds 64 KiB, including the listing's record.
_TEXT_MAX = 40_000

LOOKED_AT: dict[Tier, str] = {
    "declared": "not audited: the seller's own claim",
    "canary": "answers to known prompts started as an honest engine's would",
    "logprob": "log-probabilities were close to a reference's; this version does not check them",
    "redundancy": "answers matched those of other sellers who claim the same weights",
    "toploc": "reserved: not checked yet",
    "tee": "reserved: not checked yet",
}


router = APIRouter(prefix=STANDING)

Here = Annotated["Marketplace", here("Open disputes on the marketplace where you sold.")]

Id = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
Lane = Annotated[int, Query(ge=0, lt=LANES_MAX)]


class Brought(BaseModel):
    """The answer's text as delivered."""

    content: Annotated[str, Field(min_length=1, max_length=_TEXT_MAX)]
    reasoning: Annotated[str, Field(max_length=_TEXT_MAX)] = ""


@router.get("")
async def show(visitor: Seller, sources: Sources) -> Response:
    settings = await settings_now(sources.settings)
    marketplace = sources.marketplace
    account = account_of(visitor, sources, settings)
    standing, problem = await standing_of(account)
    values: dict[str, Any] = {"record": None, "disputes": None, "lanes": []}
    if marketplace is not None and (account is None or account.is_here):
        values = await marketplace.ask(_of_marketplace, marketplace, visitor.caller.user_id)
    return page(
        "selling/standing.html",
        visitor,
        tab="standing",
        account=account,
        standing=standing,
        problem=problem,
        looked=await _looked(visitor, sources, standing.identities if standing else ()),
        speaker=marketplace.context.speaker.id if marketplace is not None else "",
        tiers=LOOKED_AT,
        shows_denied=settings.shows_denied_prompts,
        **values,
    )


@router.get("/dispute")
async def show_dispute(visitor: Seller, marketplace: Here, allocation: Id, lane: Lane) -> Response:
    return await _dispute_page(visitor, marketplace, allocation, lane)


@router.post("/dispute")
async def open_dispute(visitor: Seller, marketplace: Here, allocation: Id, lane: Lane) -> Response:
    """Submit the text through the marketplace's own route; the first to do so opens the dispute, at a fee.

    Raises NotFound if the visitor has no such allocation.
    """
    from gateway.console.pages.selling.desks import allocation_raw, bring_text

    raw = await marketplace.ask(allocation_raw, marketplace, allocation, visitor.caller.user_id)
    if raw is None:
        raise NotFound("Allocation not found.")
    user_id = visitor.caller.user_id
    done, form = await submit_form(
        visitor, Brought, lambda new: bring_text(marketplace, user_id, raw, lane, new.content, new.reasoning)
    )
    if done is None:
        return await _dispute_page(visitor, marketplace, allocation, lane, form, 400)
    is_open = done.status == "open"
    word = "is open. The other side has one day to answer" if is_open else f"is decided: {done.reason}"
    return go(visitor, f"{STANDING}#disputes", f"The dispute {word}.")


def _of_marketplace(marketplace: Marketplace, user_id: str) -> dict[str, Any]:
    from gateway.console.pages.selling.desks import dispute_views, open_lanes, record_of

    return {
        "record": record_of(marketplace, user_id),
        "disputes": dispute_views(marketplace, user_id),
        "lanes": open_lanes(marketplace, user_id),
    }


async def _looked(
    visitor: Visitor, sources: Sources, identities: Sequence[str]
) -> "list[tuple[str, AuditFinding]]":
    """Return findings with their auditors from the marketplace's own records, else from the agent's."""
    from gateway.console.pages.selling.desks import findings_about
    from gateway.console.pages.selling.records import AgentFiles

    if sources.marketplace is not None:
        return await sources.marketplace.ask(findings_about, sources.marketplace, identities)
    files = AgentFiles(DataFolder(sources.settings.data_dir).market)
    return await asyncio.to_thread(_agent_findings, files) if visitor.is_operator else []


def _agent_findings(files: "AgentFiles") -> "list[tuple[str, AuditFinding]]":
    identity = files.identity()
    if identity is None:
        return []
    return [
        (auditor, each)
        for auditor, findings in files.findings_about(identity)
        for each in findings.entries
        if each.seller == identity != auditor
    ]


async def _dispute_page(
    visitor: Visitor,
    marketplace: Marketplace,
    allocation: str,
    lane: int,
    form: Form[Brought] | None = None,
    status: int = 200,
) -> Response:
    from gateway.console.pages.selling.desks import facts_of_lane

    values = await marketplace.ask(facts_of_lane, marketplace, visitor.caller.user_id, allocation, lane)
    return page(
        "selling/dispute.html",
        visitor,
        status,
        tab="standing",
        allocation=allocation,
        lane=lane,
        form=form or Form.showing(),
        **values,
    )
