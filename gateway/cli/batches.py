"""`millrace batch`: list and cancel batches."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from gateway.batches.batch import Batch

app = typer.Typer(help="Batches: files of requests, answered on idle capacity.", no_args_is_help=True)

_ROWS_MAX = 1000


@app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(help="Number of batches, newest first.", min=1, max=_ROWS_MAX)] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List all batches. Example: millrace batch list --limit 5"""
    from gateway.batches.store import BatchStore
    from gateway.cli.store import open_store

    settings = settings_from(data_dir)
    with open_store(settings) as (read, write):
        found = BatchStore(read, write, settings.batches.per_user_max).newest(None, limit)
    output.only_data([batch.as_api() | {"owner": batch.owner} for batch in found], as_json=as_json)
    columns = ("batch", "owner", "status", "done", "failed", "total", "started", "model")
    output.table(columns, [_row(batch) for batch in found], as_json=False)


@app.command()
def cancel(
    batch: Annotated[str, typer.Argument(help="Batch ID.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a batch; finished answers are kept. Example: millrace batch cancel batch_0192ab"""
    from gateway.batches.store import BatchStore
    from gateway.cli.directory import BY
    from gateway.cli.store import open_store
    from runtime.errors import ServiceError

    settings = settings_from(data_dir)
    with open_store(settings) as (read, write):
        try:
            stopped = BatchStore(read, write, settings.batches.per_user_max).cancel(None, batch, BY)
        except ServiceError as error:
            output.fail(error.message)
    output.tell(
        stopped.as_api(),
        f"{batch} is {stopped.status}; the running gateway applies this within seconds",
        as_json=as_json,
    )


def _row(batch: "Batch") -> tuple[object, ...]:
    begun = datetime.fromtimestamp(batch.created_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
    counts = (batch.completed, batch.failed, batch.total)
    return (batch.id, batch.owner, batch.status, *counts, begun, batch.model or "")
