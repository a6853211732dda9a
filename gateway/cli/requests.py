"""`millrace requests`: recent requests with their routing decisions."""

import signal
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from gateway.cli import output
from gateway.cli.command import Report, with_authority

if TYPE_CHECKING:
    from gateway.admin.authority import Authority
    from gateway.billing.request_log import RequestEntry, RequestLog

_COLUMNS = ("time", "request", "model", "lane", "status", "tokens", "ms", "event", "reason")
_LOOK_S = 0.5
_SEEN_MAX = 500


@with_authority()
def requests(
    authority: "Authority",
    limit: Annotated[int, typer.Option(help="Number of requests, newest first.", min=1, max=1000)] = 20,
    request_id: Annotated[
        str | None, typer.Option("--id", help="Show one request with its full decision.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new requests as they end.")
    ] = False,
    *,
    as_json: bool,
) -> Report | None:
    """Show recent requests with the reasons for their lanes. Example: millrace requests -f"""
    from gateway.billing.request_log import RequestLog

    log = RequestLog(authority.directory.read, authority.directory.write)
    if request_id:
        found = log.find(request_id)
        if found is None:
            output.fail(f"request {request_id} not found in the log")
        return Report(asdict(found), output.data)
    if follow:
        _follow(log, limit, as_json=as_json)
        return None
    entries = log.newest(limit)
    return Report([asdict(entry) for entry in entries], lambda _: output.table(_COLUMNS, map(_row, entries)))


def _follow(log: "RequestLog", limit: int, *, as_json: bool) -> None:
    """Print a line per request, oldest first, then each new one, until Ctrl-C."""
    found = log.newest(_SEEN_MAX)
    known = {entry.request_id for entry in found}
    if not as_json:
        output.say(("  ".join(_COLUMNS), "bold"))
    # Python drops a KeyboardInterrupt raised while an object is collected; a flag is not lost.
    is_stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: is_stopped.set())
    _tell(found[:limit], as_json=as_json)
    while not is_stopped.wait(_LOOK_S):
        found = log.newest(_SEEN_MAX)
        _tell([entry for entry in found if entry.request_id not in known], as_json=as_json)
        # A request that left the newest ones does not return.
        known = {entry.request_id for entry in found}


def _tell(entries: "list[RequestEntry]", *, as_json: bool) -> None:
    for entry in reversed(entries):
        if as_json:
            output.data(asdict(entry))
        else:
            typer.echo("  ".join(output.plain(str(cell)) for cell in _row(entry) if cell is not None))


def _row(entry: "RequestEntry") -> tuple[object, ...]:
    return (
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
