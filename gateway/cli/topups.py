"""`millrace topup` and `millrace statement`: buying credits, and the transfers of an account."""

import sys
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import output
from gateway.cli.gateway_client import ask, borrowed_key, user_headers
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from accounting.ledger.balances import StatementLine

_WAIT_S = 1800.0
_LOOK_S = 3.0
_LINES_MAX = 100_000
_PAGE = 1000
_GRANTS_MAX = 100
_OPEN = ("new", "open")
_COLUMNS = ("id", "event", "time", "kind", "ref", "phase", "account", "counterpart", "amount")


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
    from accounting.money import format_usd
    from gateway.billing.sheets import as_csv as written
    from gateway.cli.store import open_store, saying_what_is_wrong
    from runtime.times import at

    with saying_what_is_wrong(), open_store(settings_from(data_dir)) as (read, _), read() as session:
        lines = _lines(session, user, pool, limit)
    rows = [
        (
            line.transfer_seq,
            line.event_seq,
            at(line.created_ns),
            line.kind,
            line.ref,
            line.phase,
            account,
            line.counterpart,
            format_usd(line.amount_nano),
        )
        for account, line in lines
    ]
    if as_csv:
        sys.stdout.write(written(_COLUMNS, [list(row) for row in rows]))
    else:
        output.table(_COLUMNS, rows, as_json=as_json)


def _lines(session: "Session", user: str, pool: str | None, limit: int) -> list[tuple[str, "StatementLine"]]:
    """Return the newest lines of all accounts combined; a transfer between two of them is a line of the first."""
    from accounting.ledger.balances import statement as read_lines

    found: dict[int, tuple[str, StatementLine]] = {}
    for account in _accounts(session, user, pool):
        before, taken = None, 0
        while taken < limit:
            page = read_lines(session, account, before_seq=before, limit=min(_PAGE, limit - taken))
            for line in page:
                found.setdefault(line.transfer_seq, (account, line))
            if len(page) < min(_PAGE, limit - taken):
                break
            before, taken = page[-1].transfer_seq, taken + len(page)
    return [found[seq] for seq in sorted(found, reverse=True)[:limit]]


def _accounts(session: "Session", user: str, pool: str | None) -> list[str]:
    from accounting import chart
    from accounting.spending.credit_grants import grants_of

    if pool is not None:
        return [chart.pool_paid(pool)]
    grants = [chart.user_promo(user, left.grant.id) for left in grants_of(session, user, limit=_GRANTS_MAX)]
    return [chart.user_paid(user), chart.user_receivable(user), *grants]


def _tell(opened: dict[str, Any]) -> None:
    output.say(f"top-up {opened['id']}: pay on this page; credits are added when Stripe confirms the payment")
    typer.echo(output.plain(opened["url"] or ""))
