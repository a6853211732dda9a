"""`millrace usage`: usage and cost by day, model, key, team and more."""

import sys
import time
from typing import Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from


def usage(
    by: Annotated[
        str, typer.Option(help="Comma-separated groups: day, model, lane, provider, key, user, team, outcome.")
    ] = "day,model",
    days: Annotated[int, typer.Option(help="Number of days back.", min=1, max=3660)] = 30,
    scope: Annotated[
        str | None, typer.Option(help="Only for a key, user:ID, team:ORG/NAME or organization:ID.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Output CSV.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show usage and charges. Example: millrace usage --by day,model --days 7"""
    from gateway.billing.sheets import as_csv as written
    from gateway.billing.usage_report import DAY_NS, GROUPS_MAX, columns, group_names, usage_report
    from gateway.cli.directory import open_directory

    now_ns = time.time_ns()
    with open_directory(settings_from(data_dir)) as directory:
        names = group_names(by)
        if scope is not None:
            scope = scope if ":" in scope else f"key:{directory.keys.row(scope).key_id}"
            directory.quotas.organization_of(scope)
        with directory.read() as session:
            found = usage_report(session, names, scope, since_ns=now_ns - days * DAY_NS, until_ns=now_ns + 1)
    if len(found) == GROUPS_MAX:
        output.say(f"only the first {GROUPS_MAX} groups shown; use fewer days or groups")
    rows = [list(row.values()) for row in found]
    if as_csv:
        sys.stdout.write(written(columns(names), rows))
    else:
        output.table(columns(names), rows, as_json=as_json)
