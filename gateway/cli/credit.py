"""`millrace credit`: credits for paid lanes, given by the operator of the machine."""

import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import by_hand
from gateway.cli.command import Group, Report
from gateway.identity.caller import OWNER
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.admin.authority import Authority
    from gateway.admin.ledger_access import Booked

app = Group("Credits for paid lanes.")


CreditId = Annotated[
    str | None, typer.Option("--id", help="Idempotency ID: repeating it does not give the credits again.")
]
Amount = Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")]


@app.with_settings("add")
def add(
    settings: Settings,
    amount: Amount,
    note: Annotated[str, typer.Option(help="Reason on the statement.")] = "added by the operator",
    user: Annotated[str | None, typer.Option(help="User; default: the owner.")] = None,
    pool: Annotated[str | None, typer.Option(help="Organization whose members share the credits.")] = None,
    credit_id: CreditId = None,
) -> Report:
    """Add credits to a user's balance. Example: millrace credit add 5.00"""
    from gateway.admin.credit import NewCredit, give
    from gateway.cli.store import run_on_ledger

    if user is None and pool is None:
        user = OWNER
    # Check the request first: a refused one must not create a ledger.
    new, name = NewCredit(user=user, organization=pool, amount=amount, reason=note), credit_id or uuid.uuid4().hex
    return _of(run_on_ledger(settings, lambda ledger: give(ledger, name, new), make=True))


@app.with_settings("grant")
def grant(
    settings: Settings,
    amount: Amount,
    user: Annotated[str, typer.Option(help="User who receives the credits.")],
    days: Annotated[int, typer.Option(help="Days until the credits expire.", min=1, max=3650)],
    note: Annotated[str, typer.Option(help="Reason on the statement.")] = "granted by the operator",
    credit_id: CreditId = None,
) -> Report:
    """Give promotional credits that expire. Example: millrace credit grant 2.00 --user ann --days 90"""
    from gateway.admin.credit import PromoForDays, give_promo
    from gateway.cli.store import run_on_ledger

    new, name = PromoForDays(user=user, amount=amount, days=days, reason=note), credit_id or uuid.uuid4().hex
    return _of(run_on_ledger(settings, lambda ledger: give_promo(ledger, name, new), make=True), days=days)


@app.with_authority("list", ("account", "available_usd"))
def list_credits(
    authority: "Authority", user: Annotated[str, typer.Option(help="User.")] = OWNER
) -> list[dict[str, object]]:
    """Show a user's credits in charge order. Example: millrace credit list --user ann"""
    from accounting.money import format_usd
    from gateway.admin.balance import credits_in_order

    found = credits_in_order(authority, user)
    return [{"account": each.account, "available_usd": format_usd(each.amount_nano)} for each in found]


def _of(booked: "Booked", **more: int) -> Report:
    amount_usd, posted = booked.facts["amount"], booked.posted
    kind, _, name = booked.facts["to"].partition(":")
    whose = {"user" if kind == "user" else "pool": name}
    facts = {"event": posted.event_seq, "amount_usd": amount_usd} | whose | {"was_there": posted.replayed} | more
    what = "received this before" if posted.replayed else f"received ${amount_usd}"
    return Report(facts, f"{name} {what} (entry {posted.event_seq})")


app.command("goodwill")(by_hand.goodwill)
