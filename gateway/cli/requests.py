"""`millrace requests`: what was asked lately, where it went and why."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from


def requests(
    limit: Annotated[int, typer.Option(help="How many, newest first.", min=1, max=1000)] = 20,
    request_id: Annotated[str | None, typer.Option("--id", help="One request, with its whole decision.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show recent requests with the reasons for their lanes. Example: millrace requests --limit 5"""
    from gateway.cli.store import open_store
    from gateway.records.request_log import RequestLog

    with open_store(settings_from(data_dir)) as (read, write):
        log = RequestLog(read, write)
        if request_id:
            found = log.find(request_id)
            if found is None:
                output.fail(f"no request {request_id} is in the log")
            output.data(asdict(found))
            return
        entries = log.newest(limit)
    if as_json:
        output.data([asdict(entry) for entry in entries])
        return
    columns = ("time", "request", "model", "lane", "status", "tokens", "ms", "event", "reason")
    rows = [
        (
            datetime.fromtimestamp(entry.started_ns / 1e9, UTC).strftime("%H:%M:%S"),
            entry.request_id,
            f"{entry.model} ({entry.served_model})" if entry.served_model else entry.model,
            entry.lane,
            f"{entry.status} {entry.outcome}",
            f"{entry.prompt_tokens}+{entry.completion_tokens}",
            entry.duration_ms,
            entry.event_seq,
            entry.error or entry.reason,
        )
        for entry in entries
    ]
    output.table(columns, rows, as_json=False)
