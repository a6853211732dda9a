"""/accounting/v1/ledger: verifies that the ledger matches its signed blocks and adds up. For operators."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import StringConstraints

from accounting.proofs.blocks import PAGE_MAX
from gateway.admin import ledger_checks
from gateway.admin.fields import Facts
from gateway.admin.ledger_checks import CHECKPOINT
from gateway.api.authority import Operator
from gateway.app_state import Ledger, Storage, Verifier

router = APIRouter(prefix="/accounting/v1/ledger")

_LIMIT_MAX_S = 300
_NUMBER_MAX = 2**63 - 1
_YEAR_S = 366 * 86_400
_Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@router.get("/verify")
async def verify(
    _: Operator,
    verifier: Verifier,
    from_block: Annotated[int, Query(ge=1, le=_NUMBER_MAX)] = 1,
    known: Annotated[
        str | None, Query(pattern=CHECKPOINT, description="A saved ledger checkpoint, as N:HASH.")
    ] = None,
    limit_s: Annotated[int, Query(ge=1, le=_LIMIT_MAX_S)] = 30,
    signed_by: Annotated[list[_Fingerprint], Query(max_length=100, description="All keys that may sign.")] = [],  # noqa: B006
    unproven_max_s: Annotated[int, Query(ge=2, le=_YEAR_S)] = 10,
) -> Facts:
    """Read blocks for `limit_s` seconds; `next_block` is the next call's `from_block`, null at the end."""
    return await verifier.verify(
        from_block=from_block,
        known=known,
        limit_s=limit_s,
        signed_by=signed_by,
        unproven_max_s=unproven_max_s,
    )


@router.get("/blocks")
async def show_blocks(
    _: Operator,
    ledger: Ledger,
    after: Annotated[int, Query(ge=0, le=_NUMBER_MAX)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
) -> Facts:
    """List blocks in order, and the keys that signed them. `next` is the `after` of the next page."""
    return await ledger_checks.show_blocks(ledger, after, limit)


@router.get("/health")
async def show_health(_: Operator, ledger: Ledger, storage: Storage, deep: bool = False) -> Facts:
    """List broken rules, accepted violations and entries in no block."""
    return await ledger_checks.show_health(ledger, storage.trouble, deep=deep)
