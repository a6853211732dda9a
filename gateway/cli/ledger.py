"""`millrace ledger`: verify the ledger's signatures and sums."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import by_hand, output
from gateway.cli.by_hand import Reason
from gateway.cli.command import Group, Report
from gateway.settings import Settings
from runtime.data_folder import DataFolder

if TYPE_CHECKING:
    from accounting.proofs.kept import KeptCheckpoint
    from accounting.proofs.verdict import Verdict
    from gateway.admin.authority import Authority

app = Group("Ledger proofs and checks.")
_HEALTH = ("rule", "meaning", "where", "accepted")
_BLOCKS = ("n", "from_seq", "to_seq", "made_ns", "hash", "signed_by")

app.command("correct")(by_hand.correct)
app.command("forgive")(by_hand.forgive)
app.command("invoice")(by_hand.invoice)


@app.with_authority("verify")
def verify(
    authority: "Authority",
    settings: Settings,
    from_block: Annotated[
        int, typer.Option(help="First block to verify; account balances are then not checked.", min=1)
    ] = 1,
    known: Annotated[
        str | None, typer.Option(help="Saved ledger checkpoint N:HASH, which the ledger must still contain.")
    ] = None,
    signed_by: Annotated[
        list[str] | None, typer.Option(help="Fingerprint of an accepted signing key; all other keys are errors.")
    ] = None,
    unproven_max_s: Annotated[
        int, typer.Option(help="Maximum age of unsigned entries, in seconds.", min=0)
    ] = 3600,
) -> Report:
    """Verify the whole ledger and its proofs. Exits with status 1 on errors.

    The ledger must contain the newest block known to the gateway of this data directory.

    Example: millrace ledger verify
    """
    from gateway.admin.ledger_checks import verify_whole
    from gateway.billing.verification import facts_of

    began_s = time.monotonic()
    verdict = verify_whole(
        authority,
        _kept_checkpoint(settings),
        from_block=from_block,
        known=known,
        signed_by=signed_by or [],
        unproven_max_s=unproven_max_s,
    )
    took_s = time.monotonic() - began_s
    return Report(facts_of(verdict), lambda _: _tell(verdict, took_s), 0 if verdict.is_sound else output.FAILED)


def _tell(verdict: "Verdict", took_s: float) -> None:
    for flaw in verdict.flaws:
        output.say((flaw.where, "bold red"), f": {flaw.what}")
    how = "verified" if verdict.is_sound else f"VERIFICATION FAILED: {len(verdict.flaws)} errors"
    output.say(f"{verdict.blocks} blocks with {verdict.events} entries in {took_s:.1f} s: {how}")
    if not verdict.is_complete:
        output.say(f"Stopped before block {verdict.next_block}; account balances were not checked.")
    age = "" if verdict.tail_age_s is None else f", the oldest {verdict.tail_age_s:.0f} s old"
    output.say(f"Unsigned entries: {verdict.tail_events}{age}.")
    for fingerprint, count in verdict.signed_by.items():
        output.say(f"{count} blocks signed by {fingerprint}")
    if verdict.checkpoint:
        typer.echo(str(verdict.checkpoint))


@app.with_authority("health")
def health(authority: "Authority", settings: Settings) -> Report:
    """Check every rule of the ledger. Exits with status 1 on an open violation.

    Example: millrace ledger health
    """
    from gateway.admin.ledger_checks import rules_broken

    found = rules_broken(authority, _kept_checkpoint(settings))
    rows = [(each.rule, each.meaning, "; ".join(each.where), each.is_accepted) for each in found]
    is_broken = any(not each.is_accepted for each in found)
    if not is_broken:
        output.say("all rules hold" if not found else "all rules hold, except accepted violations")
    facts = output.as_dicts(_HEALTH, rows)
    return Report(facts, _HEALTH if rows else "", output.FAILED if is_broken else 0)


@app.with_authority("accept")
def accept(
    authority: "Authority",
    settings: Settings,
    rule: Annotated[str, typer.Argument(help="Rule, as shown by `millrace ledger health`.")],
    where: Annotated[str, typer.Argument(help="Entry or block: the first word under `where`.")],
    reason: Reason,
) -> Report:
    """Accept a rule violation and resume spending.

    With the rule blocks_kept it accepts a database restored from a backup; run it on each gateway that uses it.

    Example: millrace ledger accept usage_is_charged r-17 --reason "incident 7, corrected"
    """
    from gateway.admin.ledger_checks import Acceptance, accept_violation

    new = Acceptance(rule=rule, where=where, reason=reason)
    is_new = accept_violation(authority.directory, authority.actor, new, _kept_checkpoint(settings))
    text = f"{rule} at {where} {'is' if is_new else 'was'} accepted; a running gateway sees it within a minute"
    return Report({"rule": rule, "where": where, "was_there": not is_new}, text)


@app.with_authority("blocks", _BLOCKS)
def show_blocks(
    authority: "Authority",
    after: Annotated[int, typer.Option(help="Show blocks after this one.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="Number of blocks.", min=1, max=1000)] = 20,
) -> Any:
    """List ledger blocks with their hashes, in order. Example: millrace ledger blocks"""
    from gateway.admin.ledger_checks import blocks_after

    with authority.directory.read() as session:
        found = blocks_after(session, after, limit).blocks
    rows = [(b.n, b.from_seq, b.to_seq, b.made_ns, b.hash.hex(), b.signed_by) for b in found]
    return output.as_dicts(_BLOCKS, rows)


@app.with_authority("rotate", "new blocks are signed by {fingerprint}")
def rotate(authority: "Authority", settings: Settings) -> Any:
    """Switch to a new signing key; old blocks stay valid. Example: millrace ledger rotate"""
    from gateway.admin.ledger_checks import rotate_key

    path = DataFolder(settings.data_dir).ledger_key
    if not path.exists():
        output.fail(f"no signing key in {path.parent}. Is --data-dir correct?")
    return {"fingerprint": rotate_key(authority, path)}


def _kept_checkpoint(settings: Settings) -> "KeptCheckpoint":
    """Return the newest block that the gateway of this data directory has seen. Raises CheckpointUnusable."""
    from accounting.proofs.kept import KeptCheckpoint

    return KeptCheckpoint(DataFolder(settings.data_dir).ledger_key)
