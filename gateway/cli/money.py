"""`millrace balance` and `credit`: what there is to spend on the cloud."""

import uuid
from typing import Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.settings import Settings

credit = typer.Typer(help="Credits for paid lanes.", no_args_is_help=True)


@credit.command("add")
def add(
    amount: Annotated[str, typer.Argument(help="USD as a decimal number, such as 5.00.")],
    note: Annotated[str, typer.Option(help="Why, for the statement.")] = "added by the operator",
    user: Annotated[str, typer.Option(help="Whose credits.")] = "owner",
    credit_id: Annotated[
        str | None, typer.Option("--id", help="A name of this payment: under one name it is added once.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Allow somebody to spend so much on cloud lanes. Example: millrace credit add 5.00"""
    from accounting.money import format_usd, parse_usd
    from gateway.cli.directory import BY, open_directory
    from gateway.cli.store import saying_what_is_wrong, with_books

    with saying_what_is_wrong():
        amount_nano = parse_usd(amount)
        name = credit_id or uuid.uuid4().hex
        _refuse_nobody(settings_from(data_dir), user)
        posted = with_books(
            settings_from(data_dir), lambda books: books.credit(name, user, amount_nano, note), make=True
        )
    if not posted.replayed:
        given = {"amount_usd": format_usd(amount_nano), "id": name, "note": note}
        with open_directory(settings_from(data_dir)) as directory:
            directory.audit.add(BY, "credit.add", f"person:{user}", given)
    if as_json:
        added = {"event": posted.event_seq, "amount_usd": format_usd(amount_nano), "user": user}
        output.data(added | {"was_there": posted.replayed})
        return
    what = "was given this before" if posted.replayed else f"has ${format_usd(amount_nano)} more"
    output.say(f"{user} {what} (event {posted.event_seq})")


def _refuse_nobody(settings: Settings, user: str) -> None:
    """Credits of nobody would be spent by whoever is called so first."""
    from gateway.cli.store import open_store
    from gateway.errors import NotFound
    from gateway.identity.people import People

    with open_store(settings, make=True) as (read, write):
        try:
            People(read, write).person(user)
        except NotFound as error:
            output.fail(f"--user: {error.message}; `millrace people add {user}` adds them", output.WRONG_USAGE)


def balance(
    user: Annotated[str, typer.Option(help="Whose credits.")] = "owner",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show credits: there, held by running requests, free. Example: millrace balance"""
    from accounting.money import format_usd
    from gateway.cli.store import saying_what_is_wrong, with_books

    with saying_what_is_wrong():
        found = with_books(settings_from(data_dir), lambda books: books.balance(user))
    amounts = (found.posted_nano, found.held_nano, found.available_nano)
    columns = ("user", "credits_usd", "held_usd", "available_usd")
    output.table(columns, [(user, *map(format_usd, amounts))], as_json=as_json)
