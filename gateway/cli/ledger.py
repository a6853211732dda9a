"""`millrace ledger`: is the ledger what it was when it was signed, and does it add up?"""

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import by_hand, mending, output
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from accounting.proofs.blocks import Head
    from accounting.proofs.verdict import Verdict

app = typer.Typer(help="Proofs of the ledger.", no_args_is_help=True)
app.command("accept")(mending.accept)
app.command("correct")(by_hand.correct)
app.command("forgive")(by_hand.forgive)
app.command("invoice")(by_hand.invoice)


@app.command("verify")
def verify(
    from_block: Annotated[int, typer.Option(help="Begin here; accounts are then not added up.", min=1)] = 1,
    known: Annotated[
        str | None, typer.Option(help="A head that was kept elsewhere, as N:HASH: it must still be there.")
    ] = None,
    signed_by: Annotated[
        list[str] | None, typer.Option(help="The fingerprint of a key that may have signed; all others are flaws.")
    ] = None,
    unproven_max_s: Annotated[
        int, typer.Option(help="How old an event may be that is in no block, in seconds.", min=0)
    ] = 3600,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Read the whole ledger and its proofs; status 1 when they differ.

    The newest block that the gateway of this data folder has seen must be there.

    Example: millrace ledger verify
    """
    from sqlalchemy.exc import SQLAlchemyError

    from accounting.proofs.verification import BlockUnknown
    from accounting.proofs.verification import verify as verified
    from gateway.cli.store import open_store
    from gateway.records.verifying import facts_of

    settings = settings_from(data_dir)
    kept = [_head(known)] if known else []
    if (own := mending.kept_head(settings).head) and own.n:
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
            output.fail(f"the books cannot be read: {type(error).__name__}")
    if as_json:
        output.data(facts_of(verdict))
    else:
        _tell(verdict, time.monotonic() - began_s)
    if not verdict.is_sound:
        raise typer.Exit(output.FAILED)


def _head(text: str) -> "Head":
    from accounting.proofs.blocks import Head

    try:
        return Head.parse(text)
    except ValueError as error:
        output.fail(f"--known: {error}", output.WRONG_USAGE)


def _fingerprints(texts: list[str]) -> list[str]:
    for text in texts:
        if not re.fullmatch("[0-9a-f]{64}", text):
            output.fail(f"--signed-by: {text!r} is no fingerprint, which has 64 hex digits", output.WRONG_USAGE)
    return texts


def _tell(verdict: "Verdict", took_s: float) -> None:
    for flaw in verdict.flaws:
        output.say((flaw.where, "bold red"), f": {flaw.what}")
    how = "sound" if verdict.is_sound else f"NOT what was proven: {len(verdict.flaws)} flaws"
    output.say(f"{verdict.blocks} blocks with {verdict.events} events in {took_s:.1f} s: {how}")
    if not verdict.is_complete:
        output.say(f"It ended before block {verdict.next_block}; accounts were not added up.")
    age = "" if verdict.tail_age_s is None else f", the oldest for {verdict.tail_age_s:.0f} s"
    output.say(f"{verdict.tail_events} events are in no block yet{age}.")
    for fingerprint, count in verdict.signed_by.items():
        output.say(f"{count} blocks signed by {fingerprint}")
    if verdict.head:
        typer.echo(str(verdict.head))


@app.command("health")
def health(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check every rule of the ledger; status 1 where one is broken and open. Example: millrace ledger health"""
    from sqlalchemy.exc import SQLAlchemyError

    from accounting.ledger.health import findings
    from gateway.cli.store import open_store

    settings = settings_from(data_dir)
    with open_store(settings) as (read, _), read() as session:
        try:
            found = findings(session, time.time_ns(), witness=mending.witness(settings, session))
        except SQLAlchemyError as error:
            output.fail(f"the books cannot be read: {type(error).__name__}")
    rows = [(each.rule, each.meaning, "; ".join(each.where), each.is_accepted) for each in found]
    if rows or as_json:
        output.table(("rule", "meaning", "where", "accepted"), rows, as_json=as_json)
    if any(not each.is_accepted for each in found):
        raise typer.Exit(output.FAILED)
    output.say("every rule holds" if not found else "every rule holds, but for what was accepted")


@app.command("blocks")
def show_blocks(
    after: Annotated[int, typer.Option(help="Show those that follow this one.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=1000)] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List blocks of events with their hashes, in their order. Example: millrace ledger blocks"""
    from accounting.proofs.blocks import blocks_after
    from gateway.cli.store import open_store

    with open_store(settings_from(data_dir)) as (read, _), read() as session:
        found = blocks_after(session, after, limit=limit)
    rows = [(b.n, b.from_seq, b.to_seq, b.made_ns, b.hash.hex(), b.signed_by) for b in found]
    output.table(("n", "from_seq", "to_seq", "made_ns", "hash", "signed_by"), rows, as_json=as_json)


@app.command("rotate")
def rotate(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Sign with a new key from now on; old blocks stay valid. Example: millrace ledger rotate"""
    from accounting.proofs.signing_key import KeyFile, SigningKeyUnusable, make_key
    from gateway.cli.directory import BY, open_directory
    from gateway.data_folder import DataFolder

    settings = settings_from(data_dir)
    path = DataFolder(settings.data_dir).ledger_key
    if not path.exists():
        output.fail(f"there is no key in {path.parent}: is it the --data-dir of a gateway?")
    try:
        make_key(path)
        fingerprint = KeyFile(path).signer().fingerprint
    except (OSError, SigningKeyUnusable) as error:
        output.fail(str(error))
    with open_directory(settings) as directory:
        directory.audit.add(BY, "ledger.rotate", f"key:{fingerprint}", {})
    output.tell({"fingerprint": fingerprint}, f"blocks are signed by {fingerprint} from now on", as_json=as_json)
