"""`millrace credit`: credits for paid lanes, given by the operator of the machine."""

import time
import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.identity.caller import OWNER

if TYPE_CHECKING:
    from gateway.admin.ledger_access import Booked

app = typer.Typer(help="Credits for paid lanes.", no_args_is_help=True)


CreditId = Annotated[
    str | None, typer.Option("--id", help="Idempotency ID: repeating it does not give the credits again.")
]
Amount = Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")]


@app.command("add")
def add(
    amount: Amount,
    note: Annotated[str, typer.Option(help="Reason on the statement.")] = "added by the operator",
    user: Annotated[str | None, typer.Option(help="User; default: the owner.")] = None,
    pool: Annotated[str | None, typer.Option(help="Organization whose members share the credits.")] = None,
    credit_id: CreditId = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add credits to a user's balance. Example: millrace credit add 5.00"""
    from gateway.admin.credit import NewCredit, give
    from gateway.cli.store import saying_what_is_wrong, with_ledger

    if user is None and pool is None:
        user = OWNER
    settings, name = settings_from(data_dir), credit_id or uuid.uuid4().hex
    with saying_what_is_wrong(user or ""):
        new = NewCredit(user=user, organization=pool, amount=amount, reason=note)
        _tell(with_ledger(settings, lambda access: give(access, name, new), make=True), as_json=as_json)


@app.command("grant")
def grant(
    amount: Amount,
    user: Annotated[str, typer.Option(help="User who receives the credits.")],
    days: Annotated[int, typer.Option(help="Days until the credits expire.", min=1, max=3650)],
    note: Annotated[str, typer.Option(help="Reason on the statement.")] = "granted by the operator",
    credit_id: CreditId = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give promotional credits that expire. Example: millrace credit grant 2.00 --user ann --days 90"""
    from gateway.admin.credit import PromoForDays, give_promo
    from gateway.cli.store import saying_what_is_wrong, with_ledger

    settings, name = settings_from(data_dir), credit_id or uuid.uuid4().hex
    with saying_what_is_wrong(user):
        new = PromoForDays(user=user, amount=amount, days=days, reason=note)
        _tell(
            with_ledger(settings, lambda access: give_promo(access, name, new), make=True), days, as_json=as_json
        )


@app.command("list")
def list_credits(
    user: Annotated[str, typer.Option(help="User.")] = OWNER,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a user's credits in charge order. Example: millrace credit list --user ann"""
    from accounting.money import format_usd
    from accounting.rules.held import Payer
    from accounting.spending.funding_sources import credits_of
    from gateway.cli.directory import open_directory
    from gateway.cli.store import saying_what_is_wrong

    with open_directory(settings_from(data_dir)) as directory, saying_what_is_wrong(user):
        payer = Payer(user, directory.users.user(user).organization_id)
        with directory.read() as session:
            found = credits_of(session, payer, time.time_ns())
    rows = [(share.account, format_usd(share.amount_nano)) for share in found]
    output.table(("account", "available_usd"), rows, as_json=as_json)


def _tell(booked: "Booked", days: int | None = None, *, as_json: bool) -> None:
    amount_usd, posted = booked.facts["amount"], booked.posted
    kind, _, name = booked.facts["to"].partition(":")
    whose = {"user" if kind == "user" else "pool": name}
    facts = {"event": posted.event_seq, "amount_usd": amount_usd} | whose | {"was_there": posted.replayed}
    output.only_data(facts if days is None else facts | {"days": days}, as_json=as_json)
    what = "received this before" if posted.replayed else f"received ${amount_usd}"
    output.say(f"{name} {what} (entry {posted.event_seq})")
