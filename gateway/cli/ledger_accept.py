"""`millrace ledger accept`: accept an entry that broke a rule, for a recorded reason.

It also accepts a ledger restored from a backup, which has fewer blocks than were made.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from accounting.ledger.scope import Witness
    from accounting.proofs.blocks import Checkpoint
    from accounting.proofs.kept import KeptCheckpoint
    from gateway.settings import Settings

Reason = Annotated[str, typer.Option(help="Reason, recorded for later readers of the ledger.")]


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
    from accounting.ledger.accepted import accept as write_down
    from accounting.ledger.health import BLOCKS_KEPT, RULES, breaches
    from accounting.proofs.blocks import newest
    from gateway.cli.directory import BY, open_directory
    from gateway.cli.store import open_store

    settings = settings_from(data_dir)
    if rule not in RULES:
        output.fail(f"RULE: unknown rule {rule!r}; rules are {', '.join(RULES)}", output.WRONG_USAGE)
    if not RULES[rule].is_of_events and rule != BLOCKS_KEPT:
        output.fail(
            f"RULE: {rule} is about totals and cannot be accepted; use an adjustment or a backup",
            output.WRONG_USAGE,
        )
    with open_store(settings) as (read, write):
        with read() as session:
            broken = breaches(session, rule, time.time_ns(), witness(settings, session))
            checkpoint = newest(session).checkpoint
        if where not in broken:
            known = f"it is at {', '.join(broken[:5])}" if broken else "there is no violation"
            output.fail(f"WHERE: {rule} is not broken at {where!r}: {known}", output.WRONG_USAGE)
        if rule == BLOCKS_KEPT:
            is_new = _keep(settings, checkpoint)
        else:
            with write() as session, session.begin():
                is_new = write_down(session, rule, where, reason, time.time_ns())
    facts = {"where": where, "reason": reason}
    with open_directory(settings) as directory:
        directory.audit.add_once(BY, "ledger.accept", f"rule:{rule}", facts, named_by="where")
    text = f"{rule} at {where} {'is' if is_new else 'was'} accepted; a running gateway sees it within a minute"
    output.tell({"rule": rule, "where": where, "was_there": not is_new}, text, as_json=as_json)


def kept_checkpoint(settings: "Settings") -> "KeptCheckpoint":
    """Return the newest block that the gateway of this data directory has seen."""
    from accounting.proofs.kept import CheckpointUnusable, KeptCheckpoint
    from runtime.data_folder import DataFolder

    try:
        return KeptCheckpoint(DataFolder(settings.data_dir).ledger_key)
    except CheckpointUnusable as error:
        output.fail(str(error))


def witness(settings: "Settings", session: "Session") -> "Witness":
    """Return what the gateway of this data directory knows of the ledger, running or not."""
    from accounting.ledger.scope import Witness
    from accounting.proofs.suspects import unproven_suspects

    checkpoint = kept_checkpoint(settings).checkpoint
    return Witness(
        (checkpoint.n, checkpoint.hash) if checkpoint and checkpoint.n else None,
        unproven_suspects(session.connection()),
    )


def _keep(settings: "Settings", checkpoint: "Checkpoint") -> bool:
    from accounting.proofs.kept import CheckpointUnusable

    try:
        kept_checkpoint(settings).keep(checkpoint)
    except CheckpointUnusable as error:
        output.fail(str(error))
    return True
