"""`millrace topup` and `millrace statement`: buying credits, and the transfers of an account."""

import sys
import time
import uuid
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import output
from gateway.cli.gateway_client import ask, borrowed_key, user_headers
from gateway.cli.serving import AsJson, DataDir, settings_from

_WAIT_S = 1800.0
_LOOK_S = 3.0
_LINES_MAX = 100_000
_OPEN = ("new", "open")


def topup(
    amount: Annotated[str, typer.Argument(help="Credits in USD, e.g. 25.00.")],
    user: Annotated[str, typer.Option(help="User.")] = "owner",
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation of the fee.")] = False,
    topup_id: Annotated[
        str | None, typer.Option("--id", help="Idempotency ID: repeating it does not buy the top-up again.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait up to 30 minutes for the payment.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Buy credits; prints a link to Stripe's payment page. Example: millrace topup 25.00"""
    settings = settings_from(data_dir)
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
    if as_json:
        output.data(opened)
    elif wait:
        output.say(f"top-up {opened['id']} is {opened['status']}")


def statement(
    user: Annotated[str, typer.Option(help="User.")] = "owner",
    pool: Annotated[str | None, typer.Option(help="Show an organization's balance instead, by its ID.")] = None,
    limit: Annotated[int, typer.Option(help="Number of lines, newest first.", min=1, max=_LINES_MAX)] = 50,
    as_csv: Annotated[bool, typer.Option("--csv", help="Output CSV.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a user's transfers with debit and credit account. Example: millrace statement --csv"""
    from accounting import chart
    from gateway.admin.statement import COLUMNS, accounts_of_user, newest_lines, row
    from gateway.billing.sheets import as_csv as written
    from gateway.cli.directory import open_directory
    from gateway.cli.store import saying_what_is_wrong

    with open_directory(settings_from(data_dir)) as directory, saying_what_is_wrong("" if pool else user):
        if pool is not None:
            code = chart.pool_paid(directory.users.organization(pool).organization_id)
        else:
            directory.users.ever(user)
        with directory.read() as session:
            accounts = accounts_of_user(session, user) if pool is None else {code: code}
            rows = [row(*line) for line in newest_lines(session, accounts, None, limit)]
    if as_csv:
        sys.stdout.write(written(COLUMNS, rows))
    else:
        output.table(COLUMNS, rows, as_json=as_json)


def _tell(opened: dict[str, Any]) -> None:
    output.say(f"top-up {opened['id']}: pay on this page; credits are added when Stripe confirms the payment")
    typer.echo(output.plain(opened["url"] or ""))
