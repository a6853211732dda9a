"""`millrace balance`: a user's credits for paid lanes."""

from typing import Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from


def balance(
    user: Annotated[str, typer.Option(help="User.")] = "owner",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show credits: total, held by running requests, available. Example: millrace balance"""
    from accounting.money import format_usd
    from gateway.cli.store import saying_what_is_wrong, with_ledger

    with saying_what_is_wrong(user):
        found = with_ledger(settings_from(data_dir), lambda access: access.own_credits(user))
    amounts = (found.posted_nano, found.held_nano, found.available_nano)
    columns = ("user", "credits_usd", "held_usd", "available_usd")
    output.table(columns, [(user, *map(format_usd, amounts))], as_json=as_json)
