"""Manual entries by operators, each posted once per id: adjustment, goodwill, write-off, provider invoice."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.ledger_accept import Reason
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.settings import Settings

if TYPE_CHECKING:
    from accounting.ledger.postings import Posted, Posting

Amount = Annotated[str, typer.Option(help="Amount in USD, e.g. 5.00.")]


def correct(
    incident: Annotated[str, typer.Argument(help="Incident ID; each incident debits an account only once.")],
    debit: Annotated[str, typer.Option("--from", help="Debit account, e.g. user:ann:paid.")],
    credit: Annotated[str, typer.Option("--to", help="Credit account.")],
    amount: Amount,
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Post an adjustment as a separate journal entry.

    Example: millrace ledger correct incident-7 --from user:ann:paid --to asset:bank --amount 5 --reason "twice"
    """
    from accounting.money import parse_usd
    from accounting.rules.corrections import correction
    from gateway.cli.store import saying_what_is_wrong

    with saying_what_is_wrong():
        posting = correction(incident, debit, credit, parse_usd(amount), reason)
        _book(settings_from(data_dir), posting, ("ledger.correct", f"account:{debit}", reason), as_json=as_json)


def goodwill(
    amount: Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")],
    user: Annotated[str, typer.Option(help="User who receives the credits.")],
    goodwill_id: Annotated[
        str, typer.Option("--id", help="Idempotency ID: repeating it does not give the credits again.")
    ],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give goodwill credits that do not expire, paid by this gateway.

    Example: millrace credit goodwill 2.00 --user ann --id outage-3 --reason "outage of 3 May"
    """
    from accounting.money import parse_usd
    from accounting.rules import grants
    from gateway.cli.credit import refuse_unknown
    from gateway.cli.store import saying_what_is_wrong

    settings = settings_from(data_dir)
    with saying_what_is_wrong():
        posting = grants.goodwill(goodwill_id, user, parse_usd(amount), reason)
        refuse_unknown(settings, user)
        _book(settings, posting, ("credit.goodwill", f"user:{user}", reason), as_json=as_json, debtor=user)


def forgive(
    incident: Annotated[str, typer.Argument(help="Incident ID; each incident is written off once.")],
    account: Annotated[
        str, typer.Argument(help="Debtor's account: asset:user_recv:ann or asset:seller_recv:sue.")
    ],
    amount: Amount,
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write off a debt, in full or in part.

    Example: millrace ledger forgive case-9 asset:user_recv:ann --amount 3.20 --reason "moved away"
    """
    from accounting import chart
    from accounting.money import parse_usd
    from accounting.rules.debts import written_off
    from gateway.cli.store import saying_what_is_wrong

    if not chart.is_receivable(account):
        text = f"ACCOUNT: {account} is not a debt account; use asset:user_recv:... or asset:seller_recv:..."
        output.fail(text, output.WRONG_USAGE)
    with saying_what_is_wrong():
        posting = written_off(incident, account, parse_usd(amount), reason)
        _book(settings_from(data_dir), posting, ("ledger.forgive", f"account:{account}", reason), as_json=as_json)


def invoice(
    provider: Annotated[str, typer.Argument(help="Provider name, as in provider:<name>:accrued.")],
    invoice_id: Annotated[str, typer.Argument(help="Invoice number; each number is paid once.")],
    amount: Amount,
    accrued: Annotated[str, typer.Option(help="Amount in USD that the ledger accrued for the invoice period.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Record a paid provider invoice; a difference from the accrued amount is posted as a variance.

    Example: millrace ledger invoice openai 2026-11 --amount 41.80 --accrued 41.75
    """
    from accounting.money import parse_usd
    from accounting.rules.invoices import invoice_paid, is_alarming
    from gateway.cli.store import saying_what_is_wrong

    with saying_what_is_wrong():
        accrued_nano, billed_nano = parse_usd(accrued), parse_usd(amount)
        posting = invoice_paid(provider, invoice_id, accrued_nano, billed_nano)
        why = f"billed {amount}, accrued {accrued}"
        _book(settings_from(data_dir), posting, ("ledger.invoice", f"provider:{provider}", why), as_json=as_json)
    if is_alarming(accrued_nano, billed_nano):
        output.say("The invoice differs by more than 1 %. Check token counts and `millrace prices list`.")


def _book(
    settings: Settings, posting: "Posting", why: tuple[str, str, str], *, as_json: bool, debtor: str = ""
) -> None:
    """Post the entry and log it: action, target, reason. A debtor's new credits settle their debt first."""
    from accounting.money import format_usd
    from gateway.billing.ledger_service import LedgerService
    from gateway.cli.directory import BY, open_directory
    from gateway.cli.store import with_ledger

    async def act(ledger: LedgerService) -> "Posted":
        posted = await ledger.book(posting)
        if debtor:
            await ledger.settle_debt(posting.idem_key, debtor)
        return posted

    posted = with_ledger(settings, act)
    action, target, reason = why
    moves = [f"{format_usd(leg.amount_nano)} from {leg.debit} to {leg.credit}" for leg in posting.legs]
    facts = {"id": posting.idem_key, "moves": moves, "reason": reason}
    with open_directory(settings) as directory:
        directory.audit.add_once(BY, action, target, facts, named_by="id")
    if as_json:
        amount_usd = format_usd(posting.legs[0].amount_nano)
        output.data({"event": posted.event_seq, "was_there": posted.replayed, "amount_usd": amount_usd})
        return
    what = "was posted before" if posted.replayed else "posted"
    output.say(f"${', $'.join(moves)} {what} (entry {posted.event_seq})")
