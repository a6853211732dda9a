"""Verifies the ledger for HTTP requests, in a separate process, because it keeps a core busy.

The process (`gateway.billing.verify_process`) gets its input on stdin, because the DSN may have a password. It
ends when its time is over or stdin closes, so it never outlives the gateway.
"""

from typing import Any

import msgspec

from accounting.errors import DatabaseFailing
from accounting.proofs.blocks import Checkpoint
from accounting.proofs.tail import UNPROVEN_MAX_S
from accounting.proofs.verdict import Verdict
from runtime.children import answer_of

_PROCESS = "gateway.billing.verify_process"
# Extra time for imports, the last slice of blocks, and SQLite's check of its file.
_MARGIN_S = 120.0


class VerifyQuestion(msgspec.Struct, frozen=True):
    """The range to verify: the first block and the time limit. The rest: `accounting.proofs.verification`."""

    dsn: str
    from_block: int
    limit_s: float
    known: tuple[str, ...] = ()
    """Blocks that were saved elsewhere, as `N:HASH`."""
    signers: tuple[str, ...] = ()
    unproven_max_s: float = UNPROVEN_MAX_S


class Reply(msgspec.Struct, frozen=True):
    """The process's last line on stdout: the verdict, or why there is none."""

    verdict: dict[str, Any] | None = None
    unknown_block: str = ""
    problem: str = ""


async def verify_in_process(question: VerifyQuestion) -> Reply:
    """Verify the ledger. Raises DatabaseFailing if it cannot be read within the time and a margin."""
    try:
        answer, status = await answer_of(_PROCESS, msgspec.json.encode(question), question.limit_s + _MARGIN_S)
    except TimeoutError:
        raise DatabaseFailing("the verification did not end in time") from None
    try:
        reply = msgspec.json.decode(answer, type=Reply)
    except msgspec.DecodeError:
        raise DatabaseFailing(f"the verification ended with status {status}") from None
    if reply.problem:
        raise DatabaseFailing(reply.problem)
    return reply


def facts_of(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data."""
    return {
        "sound": verdict.is_sound,
        "complete": verdict.is_complete,
        "blocks": verdict.blocks,
        "events": verdict.events,
        "tail_events": verdict.tail_events,
        "tail_age_s": None if verdict.tail_age_s is None else round(verdict.tail_age_s, 1),
        "checkpoint": checkpoint_facts(verdict.checkpoint),
        "signed_by": verdict.signed_by,
        "accounts_checked": verdict.accounts_checked,
        "next_block": verdict.next_block,
        "flaws": [{"where": flaw.where, "what": flaw.what} for flaw in verdict.flaws],
    }


def checkpoint_facts(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    return None if checkpoint is None else {"n": checkpoint.n, "hash": checkpoint.hash.hex()}
