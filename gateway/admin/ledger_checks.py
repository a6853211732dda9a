"""Verifies that the ledger matches its signed blocks, adds up and keeps its rules; accepts violations of these."""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from accounting.ledger.accepted import accept
from accounting.ledger.health import BLOCKS_KEPT, RULES, BrokenRule, breaches, findings
from accounting.ledger.postings import MAX_TEXT
from accounting.ledger.scope import Witness
from accounting.proofs import blocks
from accounting.proofs.blocks import Checkpoint, SignedBlock
from accounting.proofs.kept import KeptCheckpoint
from accounting.proofs.maker import Unproven
from accounting.proofs.signing_key import KeyFile, make_key
from accounting.proofs.suspects import unproven_suspects
from accounting.proofs.verdict import Verdict
from accounting.proofs.verification import BlockUnknown
from accounting.proofs.verification import verify as verify_blocks
from gateway.admin.authority import Authority
from gateway.admin.fields import TEXT, Body, Facts, Text
from gateway.billing.ledger_service import LedgerService
from gateway.billing.verification import VerifyQuestion, checkpoint_facts, verify_in_process
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from runtime.errors import Overloaded, RequestInvalid

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


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies the ledger of a running gateway in a process of its own: one verification at a time."""

    _ledger: LedgerService
    _dsn: str = field(repr=False)
    _verifying: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def verify(
        self,
        *,
        from_block: int,
        known: str | None,
        limit_s: int,
        signed_by: Sequence[str] = (),
        unproven_max_s: int = 10,
    ) -> Facts:
        """Read blocks for `limit_s` seconds; `next_block` is the next call's `from_block`, None at the end.

        Only a verification from block 1 to the end adds up accounts; if that takes longer, use `millrace ledger
        verify`. An entry may be in no block for `unproven_max_s` seconds.

        `known` is a checkpoint that the ledger must contain, as the newest that this gateway has seen. All keys that
        may sign are in `signed_by`, if it has any.

        Raises Overloaded while another verification runs, and RequestInvalid if `from_block` is not in the ledger.
        """
        if self._verifying.locked():
            raise Overloaded("A verification of the ledger is running. Try again when it has ended.")
        async with self._verifying:
            kept = tuple(str(checkpoint) for checkpoint in (known, self._ledger.checkpoint) if checkpoint)
            signers = tuple(signed_by)
            question = VerifyQuestion(self._dsn, from_block, limit_s, kept, signers, unproven_max_s)
            reply = await verify_in_process(question)
        if reply.verdict is None:
            raise RequestInvalid(f"from_block: {reply.unknown_block}", param="from_block")
        return reply.verdict


def verify_whole(
    authority: Authority,
    kept: KeptCheckpoint,
    *,
    from_block: int,
    known: str | None,
    signed_by: Sequence[str],
    unproven_max_s: int,
) -> Verdict:
    """Read all blocks, beside a running gateway or without one; the parameters are those of `verify`.

    Raises RequestInvalid, and SQLAlchemyError if the database does not answer at all.
    """
    if known is not None and not re.fullmatch(CHECKPOINT.strip("^$"), known):
        raise RequestInvalid("known: must be a ledger checkpoint N:HASH", param="known")
    for signer in signed_by:
        if not re.fullmatch("[0-9a-f]{64}", signer):
            text = f"signed_by: {signer!r} is not a fingerprint of 64 hex digits"
            raise RequestInvalid(text, param="signed_by")
    checkpoints = [Checkpoint.parse(known)] if known else []
    if (own := kept.checkpoint) and own.n:
        checkpoints.append(own)
    try:
        return verify_blocks(
            authority.directory.read,
            from_block=from_block,
            known=checkpoints,
            signers=signed_by,
            unproven_max_s=unproven_max_s,
        )
    except BlockUnknown as error:
        raise RequestInvalid(f"from_block: {error}", param="from_block") from None


@dataclass(frozen=True, slots=True)
class BlockPage:
    """Blocks in order, and the newest one of the ledger."""

    blocks: list[SignedBlock]
    newest: SignedBlock

    @property
    def next(self) -> int | None:
        """The `after` of the next page."""
        return self.blocks[-1].n if self.blocks and self.blocks[-1].n < self.newest.n else None


def blocks_after(session: Session, after: int, limit: int) -> BlockPage:
    """Return the blocks after this one."""
    return BlockPage(blocks.blocks_after(session, after, limit=limit), blocks.newest(session))


async def show_blocks(ledger: LedgerService, after: int, limit: int) -> Facts:
    """Return blocks in order, and the keys that signed them. `next` is the `after` of the next page."""

    def look(session: Session) -> tuple[BlockPage, dict[str, bytes]]:
        page = blocks_after(session, after, limit)
        return page, blocks.public_keys(session, page.blocks)

    page, keys = await ledger.look(look)
    return {
        "blocks": [_block_facts(block) for block in page.blocks],
        "keys": {fingerprint: key.hex() for fingerprint, key in keys.items()},
        "checkpoint": checkpoint_facts(page.newest.checkpoint if page.newest.n else None),
        "next": page.next,
    }


def rules_broken(authority: Authority, kept: KeptCheckpoint) -> list[BrokenRule]:
    """Check every rule of the ledger, beside a running gateway or without one; accepted violations are included."""
    with authority.directory.read() as session:
        return findings(session, time.time_ns(), witness=witness_of(kept, session))


def rotate_key(authority: Authority, path: Path) -> str:
    """Switch to a new signing key in this file; return its fingerprint. Raises OSError, SigningKeyUnusable."""
    make_key(path)
    fingerprint = KeyFile(path).signer().fingerprint
    authority.directory.audit.add(authority.actor, "ledger.rotate", f"key:{fingerprint}", {})
    return fingerprint


async def show_health(ledger: LedgerService, trouble: str | None, *, deep: bool) -> Facts:
    """Return broken rules, accepted violations and entries in no block.

    `deep` checks every transfer again, at most once a minute; `age_s` is the age of the check. `trouble` is that of
    the storage.
    """
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
