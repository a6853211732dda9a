"""`millrace usage`: what was asked and what it cost, by day, model, key, team and the like."""

import sys
import time
from typing import Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from


def usage(
    by: Annotated[
        str, typer.Option(help="Groups, between commas: day, model, lane, provider, key, user, team, outcome.")
    ] = "day,model",
    days: Annotated[int, typer.Option(help="How far back, in days.", min=1, max=3660)] = 30,
    scope: Annotated[
        str | None, typer.Option(help="Only of a key, or person:ID, team:ORG/NAME, organization:ID.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, for spreadsheets.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what was used and charged. Example: millrace usage --by day,model --days 7"""
    from gateway.cli.directory import open_directory
    from gateway.records.sheets import as_csv as written
    from gateway.records.usage_report import DAY_NS, GROUPS_MAX, columns, group_names, usage_report

    now_ns = time.time_ns()
    with open_directory(settings_from(data_dir)) as directory:
        names = group_names(by)
        if scope is not None:
            scope = scope if ":" in scope else f"key:{directory.keys.row(scope).key_id}"
            directory.quotas.organization_of(scope)
        with directory.read() as session:
            found = usage_report(session, names, scope, since_ns=now_ns - days * DAY_NS, until_ns=now_ns + 1)
    if len(found) == GROUPS_MAX:
        output.say(f"only the first {GROUPS_MAX} groups are shown: ask for fewer days, or by less")
    rows = [list(row.values()) for row in found]
    if as_csv:
        sys.stdout.write(written(columns(names), rows))
    else:
        output.table(columns(names), rows, as_json=as_json)
