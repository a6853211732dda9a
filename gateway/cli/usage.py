"""`millrace usage`: usage and cost by day, model, key, team and more."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.command import Report, with_authority

if TYPE_CHECKING:
    from gateway.admin.authority import Authority


@with_authority()
def usage(
    authority: "Authority",
    by: Annotated[
        str, typer.Option(help="Comma-separated groups: day, model, lane, provider, key, user, team, outcome.")
    ] = "day,model",
    days: Annotated[int, typer.Option(help="Number of days back.", min=1, max=3660)] = 30,
    scope: Annotated[
        str | None, typer.Option(help="Only for a key, user:ID, team:ORG/NAME or organization:ID.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Output CSV.")] = False,
) -> Report | None:
    """Show usage and charges. Example: millrace usage --by day,model --days 7"""
    from gateway.admin.limits import scope_named
    from gateway.admin.usage import usage_in
    from gateway.billing.sheets import as_csv as written
    from gateway.billing.usage_report import DAY_NS, GROUPS_MAX

    whose = scope and scope_named(authority, scope)
    with authority.directory.read() as session:
        found = usage_in(session, authority, by, whose, since_ns=time.time_ns() - days * DAY_NS, limit=GROUPS_MAX)
    if found.next:
        output.say(f"only the first {GROUPS_MAX} groups shown; use fewer days or groups")
    if as_csv:
        sys.stdout.write(written(found.columns, [list(row.values()) for row in found.rows]))
        return None
    return Report(found.rows, found.columns)
