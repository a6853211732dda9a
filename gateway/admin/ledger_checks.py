"""Verifies that the ledger matches its signed blocks, adds up and keeps its rules; accepts violations of these."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from accounting.ledger.accepted import accept
from accounting.ledger.health import BLOCKS_KEPT, RULES, BrokenRule, breaches
from accounting.ledger.postings import MAX_TEXT
from accounting.ledger.scope import Witness
from accounting.proofs import blocks
from accounting.proofs.blocks import SignedBlock
from accounting.proofs.kept import KeptCheckpoint
from accounting.proofs.maker import Unproven
from accounting.proofs.suspects import unproven_suspects
from gateway.admin.fields import TEXT, Body, Facts, Text
from gateway.billing.verification import VerifyQuestion, checkpoint_facts, verify_in_process
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.errors import Overloaded, RequestInvalid

if TYPE_CHECKING:
    from gateway.services import Services

CHECKPOINT = r"^[0-9]{1,18}:[0-9a-f]{64}$"
"""A saved ledger checkpoint."""


class Acceptance(Body):
    """`where` is the entry or block that breaks the rule."""

    rule: Text
    where: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, pattern=TEXT)]
    reason: Text


def accept_violation(directory: Directory, actor: Actor, new: Acceptance, kept: KeptCheckpoint) -> bool:
    """Accept a violation, so that spending goes on; return whether it was not accepted before.

    With the rule `BLOCKS_KEPT` it accepts a database restored from a backup: `kept` then has its newest block.
    Raises RequestInvalid, CheckpointUnusable.
    """
    rule, where = new.rule, new.where
    if rule not in RULES:
        raise RequestInvalid(f"rule: unknown rule {rule!r}; rules are {', '.join(RULES)}", param="rule")
    if not RULES[rule].is_of_events and rule != BLOCKS_KEPT:
        text = f"rule: {rule} is about totals and cannot be accepted; use an adjustment or a backup"
        raise RequestInvalid(text, param="rule")
    with directory.read() as session:
        broken = breaches(session, rule, time.time_ns(), witness_of(kept, session))
        newest = blocks.newest(session).checkpoint
    if where not in broken:
        known = f"it is at {', '.join(broken[:5])}" if broken else "there is no violation"
        raise RequestInvalid(f"where: {rule} is not broken at {where!r}: {known}", param="where")
    is_new = True
    if rule == BLOCKS_KEPT:
        kept.keep(newest)
    else:
        with directory.write() as session, session.begin():
            is_new = accept(session, rule, where, new.reason, time.time_ns())
    facts = {"where": where, "reason": new.reason}
    directory.audit.add_once(actor, "ledger.accept", f"rule:{rule}", facts, named_by="where")
    return is_new


def witness_of(kept: KeptCheckpoint, session: Session) -> Witness:
    """Return what the gateway of a data directory knows of the ledger, running or not."""
    checkpoint = kept.checkpoint
    newest = (checkpoint.n, checkpoint.hash) if checkpoint and checkpoint.n else None
    return Witness(newest, unproven_suspects(session.connection()))


async def verify(
    services: "Services",
    *,
    from_block: int,
    known: str | None,
    limit_s: int,
    signed_by: Sequence[str] = (),
    unproven_max_s: int = 10,
) -> Facts:
    """Read blocks for `limit_s` seconds; `next_block` is the next call's `from_block`, None at the end.

    Only a verification from block 1 to the end adds up accounts; if that takes longer, use `millrace ledger verify`.
    An entry may be in no block for `unproven_max_s` seconds.

    `known` is a checkpoint that the ledger must contain, as the newest that this gateway has seen. All keys that
    may sign are in `signed_by`, if it has any.

    Raises Overloaded while another verification runs, and RequestInvalid if `from_block` is not in the ledger.
    """
    if services.verifying.locked():
        raise Overloaded("A verification of the ledger is running. Try again when it has ended.")
    async with services.verifying:
        dsn, signers = _dsn(services.settings), tuple(signed_by)
        kept = tuple(str(checkpoint) for checkpoint in (known, services.ledger.checkpoint) if checkpoint)
        question = VerifyQuestion(dsn, from_block, limit_s, kept, signers, unproven_max_s)
        reply = await verify_in_process(question)
    if reply.verdict is None:
        raise RequestInvalid(f"from_block: {reply.unknown_block}", param="from_block")
    return reply.verdict


async def show_blocks(services: "Services", after: int, limit: int) -> Facts:
    """Return blocks in order, and the keys that signed them. `next` is the `after` of the next page."""
    ledger = services.ledger

    def page(session: Session) -> tuple[list[SignedBlock], dict[str, bytes], SignedBlock]:
        found = blocks.blocks_after(session, after, limit=limit)
        return found, blocks.public_keys(session, found), blocks.newest(session)

    found, keys, newest = await ledger.look(page)
    return {
        "blocks": [_block_facts(block) for block in found],
        "keys": {fingerprint: key.hex() for fingerprint, key in keys.items()},
        "checkpoint": checkpoint_facts(newest.checkpoint if newest.n else None),
        "next": found[-1].n if found and found[-1].n < newest.n else None,
    }


async def show_health(services: "Services", *, deep: bool) -> Facts:
    """Return broken rules, accepted violations and entries in no block.

    `deep` checks every transfer again, at most once a minute; `age_s` is the age of the check.
    """
    ledger = services.ledger
    trouble = services.storage.trouble
    found, age_s = await ledger.inspection.latest() if deep else (await ledger.findings(deep=False), 0.0)
    return {
        "sound": all(each.is_accepted for each in found) and not trouble,
        "storage": trouble,
        "deep": deep,
        "age_s": round(age_s, 1),
        "unproven": _unproven_facts(ledger.unproven),
        "broken": [_broken_facts(each) for each in found if not each.is_accepted],
        "accepted": [_broken_facts(each) for each in found if each.is_accepted],
    }


def _broken_facts(violation: BrokenRule) -> Facts:
    return {"rule": violation.rule, "meaning": violation.meaning, "where": list(violation.where)}


def _block_facts(block: SignedBlock) -> Facts:
    """Return bytes as hex, and times as decimal strings, because they exceed the range of JSON's numbers."""
    return {
        "n": block.n,
        "from_seq": block.from_seq,
        "to_seq": block.to_seq,
        "events": block.events,
        "prev": block.prev.hex(),
        "hash": block.hash.hex(),
        "made_ns": str(block.made_ns),
        "signed_by": block.signed_by,
        "signature": block.signature.hex(),
    }


def _unproven_facts(left: Unproven | None) -> Facts | None:
    if left is None:
        return None
    return {"events": left.events, "age_s": round(left.age_s(time.time_ns()), 1), "trouble": left.trouble or None}


def _dsn(settings: Settings) -> str:
    dsn = settings.database.dsn
    return dsn.get_secret_value() if dsn else DataFolder(settings.data_dir).dsn
