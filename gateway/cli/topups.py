"""`millrace balance`, `topup` and `statement`: a user's credits, buying more, and the transfers of an account."""

import sys
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import output
from gateway.cli.command import Report, with_authority, with_ledger, with_settings
from gateway.cli.gateway_client import ask, borrowed_key, user_headers
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.admin.authority import Authority
    from gateway.admin.ledger_access import LedgerAccess

_WAIT_S = 1800.0
_LOOK_S = 3.0
_LINES_MAX = 100_000
_OPEN = ("new", "open")
_BALANCE = ("user", "credits_usd", "held_usd", "available_usd")


@with_ledger(_BALANCE)
async def balance(ledger: "LedgerAccess", user: Annotated[str, typer.Option(help="User.")] = "owner") -> Any:
    """Show credits: total, held by running requests, available. Example: millrace balance"""
    from accounting.money import format_usd

    found = await ledger.own_credits(user)
    amounts = (found.posted_nano, found.held_nano, found.available_nano)
    return output.as_dicts(_BALANCE, [(user, *map(format_usd, amounts))])


@with_settings()
def topup(
    settings: Settings,
    amount: Annotated[str, typer.Argument(help="Credits in USD, e.g. 25.00.")],
    user: Annotated[str, typer.Option(help="User.")] = "owner",
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation of the fee.")] = False,
    topup_id: Annotated[
        str | None, typer.Option("--id", help="Idempotency ID: repeating it does not buy the top-up again.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait up to 30 minutes for the payment.")] = False,
    *,
    as_json: bool,
) -> Report:
    """Buy credits; prints a link to Stripe's payment page. Example: millrace topup 25.00"""
    with borrowed_key(settings, "topup", user) as key:
        me = user_headers(key)
        price = ask(settings, "GET", f"/accounting/v1/topups/quote?amount={quote(amount)}", headers=me)
        total = f"${price['credits']} of credits plus ${price['fee']} fee: ${price['total']} ({price['mode']})"
        output.say(total)
        if not yes and not as_json and not typer.confirm("Continue?", err=True):
            output.fail("cancelled; nothing was bought", output.REFUSED)
        once = user_headers(key, topup_id or uuid.uuid4().hex)
        opened = ask(settings, "POST", "/accounting/v1/topups", {"amount": amount}, headers=once)
        if not as_json:
            _tell(opened)
        until_s = time.monotonic() + _WAIT_S
        while wait and opened["status"] in _OPEN and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
            opened = ask(settings, "GET", f"/accounting/v1/topups/{opened['id']}", headers=me) | {
                "url": opened["url"]
            }
    return Report(opened, f"top-up {opened['id']} is {opened['status']}" if wait else "")


@with_authority()
def statement(
    authority: "Authority",
    user: Annotated[str, typer.Option(help="User.")] = "owner",
    pool: Annotated[str | None, typer.Option(help="Show an organization's balance instead, by its ID.")] = None,
    limit: Annotated[int, typer.Option(help="Number of lines, newest first.", min=1, max=_LINES_MAX)] = 50,
    as_csv: Annotated[bool, typer.Option("--csv", help="Output CSV.")] = False,
) -> Any:
    """Show a user's transfers with debit and credit account. Example: millrace statement --csv"""
    from gateway.admin.statement import COLUMNS, newest_of, row
    from gateway.billing.sheets import as_csv as written

    found = newest_of(authority, user, organization=pool, limit=limit)
    rows = [row(*line) for line in found]
    if as_csv:
        sys.stdout.write(written(COLUMNS, rows))
        return None
    return Report(output.as_dicts(COLUMNS, rows), COLUMNS)


def _tell(opened: dict[str, Any]) -> None:
    output.say(f"top-up {opened['id']}: pay on this page; credits are added when Stripe confirms the payment")
    typer.echo(output.plain(opened["url"] or ""))
