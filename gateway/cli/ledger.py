"""`millrace ledger`: verify the ledger's signatures and sums."""

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import by_hand, output
from gateway.cli.by_hand import Reason
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from accounting.proofs.blocks import Checkpoint
    from accounting.proofs.kept import KeptCheckpoint
    from accounting.proofs.verdict import Verdict
    from gateway.settings import Settings

app = typer.Typer(help="Ledger proofs and checks.", no_args_is_help=True)
app.command("correct")(by_hand.correct)
app.command("forgive")(by_hand.forgive)
app.command("invoice")(by_hand.invoice)


@app.command("verify")
def verify(
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
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Verify the whole ledger and its proofs. Exits with status 1 on errors.

    The ledger must contain the newest block known to the gateway of this data directory.

    Example: millrace ledger verify
    """
    from sqlalchemy.exc import SQLAlchemyError

    from accounting.proofs.verification import BlockUnknown
    from accounting.proofs.verification import verify as verified
    from gateway.billing.verification import facts_of
    from gateway.cli.store import open_store

    settings = settings_from(data_dir)
    kept = [_checkpoint(known)] if known else []
    if (own := _kept_checkpoint(settings).checkpoint) and own.n:
        kept.append(own)
    began_s = time.monotonic()
    with open_store(settings) as (read, _):
        try:
            verdict = verified(
                read,
                from_block=from_block,
                known=kept,
                signers=_fingerprints(signed_by or []),
                unproven_max_s=unproven_max_s,
            )
        except BlockUnknown as error:
            output.fail(f"--from-block: {error}", output.WRONG_USAGE)
        except SQLAlchemyError as error:
            output.fail(f"cannot read the ledger: {type(error).__name__}")
    if as_json:
        output.data(facts_of(verdict))
    else:
        _tell(verdict, time.monotonic() - began_s)
    if not verdict.is_sound:
        raise typer.Exit(output.FAILED)


def _checkpoint(text: str) -> "Checkpoint":
    from accounting.proofs.blocks import Checkpoint

    try:
        return Checkpoint.parse(text)
    except ValueError as error:
        output.fail(f"--known: {error}", output.WRONG_USAGE)


def _fingerprints(texts: list[str]) -> list[str]:
    for text in texts:
        if not re.fullmatch("[0-9a-f]{64}", text):
            output.fail(f"--signed-by: {text!r} is not a fingerprint of 64 hex digits", output.WRONG_USAGE)
    return texts


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


@app.command("health")
def health(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check every rule of the ledger. Exits with status 1 on an open violation.

    Example: millrace ledger health
    """
    from sqlalchemy.exc import SQLAlchemyError

    from accounting.ledger.health import findings
    from gateway.admin.ledger_checks import witness_of
    from gateway.cli.store import open_store

    settings = settings_from(data_dir)
    with open_store(settings) as (read, _), read() as session:
        try:
            found = findings(session, time.time_ns(), witness=witness_of(_kept_checkpoint(settings), session))
        except SQLAlchemyError as error:
            output.fail(f"cannot read the ledger: {type(error).__name__}")
    rows = [(each.rule, each.meaning, "; ".join(each.where), each.is_accepted) for each in found]
    if rows or as_json:
        output.table(("rule", "meaning", "where", "accepted"), rows, as_json=as_json)
    if any(not each.is_accepted for each in found):
        raise typer.Exit(output.FAILED)
    output.say("all rules hold" if not found else "all rules hold, except accepted violations")


@app.command("accept")
def accept(
    rule: Annotated[str, typer.Argument(help="Rule, as shown by `millrace ledger health`.")],
    where: Annotated[str, typer.Argument(help="Entry or block: the first word under `where`.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accept a rule violation and resume spending.

    With the rule blocks_kept it accepts a database restored from a backup; run it on each gateway that uses it.

    Example: millrace ledger accept usage_is_charged r-17 --reason "incident 7, corrected"
    """
    from accounting.proofs.kept import CheckpointUnusable
    from gateway.admin.ledger_checks import Acceptance, accept_violation
    from gateway.cli.directory import BY, open_directory

    settings = settings_from(data_dir)
    with open_directory(settings) as directory:
        new = Acceptance(rule=rule, where=where, reason=reason)
        try:
            is_new = accept_violation(directory, BY, new, _kept_checkpoint(settings))
        except CheckpointUnusable as error:
            output.fail(str(error))
    text = f"{rule} at {where} {'is' if is_new else 'was'} accepted; a running gateway sees it within a minute"
    output.tell({"rule": rule, "where": where, "was_there": not is_new}, text, as_json=as_json)


@app.command("blocks")
def show_blocks(
    after: Annotated[int, typer.Option(help="Show blocks after this one.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="Number of blocks.", min=1, max=1000)] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List ledger blocks with their hashes, in order. Example: millrace ledger blocks"""
    from accounting.proofs.blocks import blocks_after
    from gateway.cli.store import open_store

    with open_store(settings_from(data_dir)) as (read, _), read() as session:
        found = blocks_after(session, after, limit=limit)
    rows = [(b.n, b.from_seq, b.to_seq, b.made_ns, b.hash.hex(), b.signed_by) for b in found]
    output.table(("n", "from_seq", "to_seq", "made_ns", "hash", "signed_by"), rows, as_json=as_json)


@app.command("rotate")
def rotate(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Switch to a new signing key; old blocks stay valid. Example: millrace ledger rotate"""
    from accounting.proofs.signing_key import KeyFile, SigningKeyUnusable, make_key
    from gateway.cli.directory import BY, open_directory
    from runtime.data_folder import DataFolder

    settings = settings_from(data_dir)
    path = DataFolder(settings.data_dir).ledger_key
    if not path.exists():
        output.fail(f"no signing key in {path.parent}. Is --data-dir correct?")
    try:
        make_key(path)
        fingerprint = KeyFile(path).signer().fingerprint
    except (OSError, SigningKeyUnusable) as error:
        output.fail(str(error))
    with open_directory(settings) as directory:
        directory.audit.add(BY, "ledger.rotate", f"key:{fingerprint}", {})
    output.tell({"fingerprint": fingerprint}, f"new blocks are signed by {fingerprint}", as_json=as_json)


def _kept_checkpoint(settings: "Settings") -> "KeptCheckpoint":
    """Return the newest block that the gateway of this data directory has seen."""
    from accounting.proofs.kept import CheckpointUnusable, KeptCheckpoint
    from runtime.data_folder import DataFolder

    try:
        return KeptCheckpoint(DataFolder(settings.data_dir).ledger_key)
    except CheckpointUnusable as error:
        output.fail(str(error))
