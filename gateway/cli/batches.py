"""`millrace batch`: list and cancel batches."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group, Report
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.admin.authority import Authority
    from gateway.batches.batch import Batch
    from gateway.batches.store import BatchStore

app = Group("Batches: files of requests, answered on idle capacity.")

_ROWS_MAX = 1000


@app.with_authority("list")
def list_batches(
    authority: "Authority",
    settings: Settings,
    limit: Annotated[int, typer.Option(help="Number of batches, newest first.", min=1, max=_ROWS_MAX)] = 20,
) -> Report:
    """List all batches. Example: millrace batch list --limit 5"""
    found = _store(authority, settings).newest(None, limit)
    columns = ("batch", "owner", "status", "done", "failed", "total", "started", "model")
    facts = [batch.as_api() | {"owner": batch.owner} for batch in found]
    return Report(facts, lambda _: output.table(columns, map(_row, found)))


@app.with_authority("cancel", "{batch} is {status}; the running gateway applies this within seconds")
def cancel(
    authority: "Authority", settings: Settings, batch: Annotated[str, typer.Argument(help="Batch ID.")]
) -> Any:
    """Cancel a batch; finished answers are kept. Example: millrace batch cancel batch_0192ab"""
    return _store(authority, settings).cancel(None, batch, authority.actor).as_api()


def _store(authority: "Authority", settings: Settings) -> "BatchStore":
    from gateway.batches.store import BatchStore

    directory = authority.directory
    return BatchStore(directory.read, directory.write, settings.batches.per_user_max)


def _row(batch: "Batch") -> tuple[object, ...]:
    begun = datetime.fromtimestamp(batch.created_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
    counts = (batch.completed, batch.failed, batch.total)
    return (batch.id, batch.owner, batch.status, *counts, begun, batch.model or "")
