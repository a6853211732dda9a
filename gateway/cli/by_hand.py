"""Manual entries by operators, each posted once per id: adjustment, goodwill, write-off, provider invoice."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.command import Report, with_ledger

if TYPE_CHECKING:
    from gateway.admin.ledger_access import Booked, LedgerAccess

Reason = Annotated[str, typer.Option(help="Reason, recorded for later readers of the ledger.")]
Amount = Annotated[str, typer.Option(help="Amount in USD, e.g. 5.00.")]


@with_ledger()
async def correct(
    ledger: "LedgerAccess",
    incident: Annotated[str, typer.Argument(help="Incident ID; each incident debits an account only once.")],
    debit: Annotated[str, typer.Option("--from", help="Debit account, e.g. user:ann:paid.")],
    credit: Annotated[str, typer.Option("--to", help="Credit account.")],
    amount: Amount,
    reason: Reason,
) -> Report:
    """Post an adjustment as a separate journal entry.

    Example: millrace ledger correct incident-7 --from user:ann:paid --to asset:bank --amount 5 --reason "twice"
    """
    from gateway.admin.manual_entries import Correction, correct

    new = Correction(incident=incident, debit=debit, credit=credit, amount=amount, reason=reason)
    return _of(await correct(ledger, new))


@with_ledger()
async def goodwill(
    ledger: "LedgerAccess",
    amount: Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")],
    user: Annotated[str, typer.Option(help="User who receives the credits.")],
    goodwill_id: Annotated[
        str, typer.Option("--id", help="Idempotency ID: repeating it does not give the credits again.")
    ],
    reason: Reason,
) -> Report:
    """Give goodwill credits that do not expire, paid by this gateway.

    Example: millrace credit goodwill 2.00 --user ann --id outage-3 --reason "outage of 3 May"
    """
    from gateway.admin.manual_entries import Goodwill, give_goodwill

    return _of(await give_goodwill(ledger, goodwill_id, Goodwill(user=user, amount=amount, reason=reason)))


@with_ledger()
async def forgive(
    ledger: "LedgerAccess",
    incident: Annotated[str, typer.Argument(help="Incident ID; each incident is written off once.")],
    account: Annotated[
        str, typer.Argument(help="Debtor's account: asset:user_recv:ann or asset:seller_recv:sue.")
    ],
    amount: Amount,
    reason: Reason,
) -> Report:
    """Write off a debt, in full or in part.

    Example: millrace ledger forgive case-9 asset:user_recv:ann --amount 3.20 --reason "moved away"
    """
    from gateway.admin.manual_entries import WriteOff, forgive

    return _of(await forgive(ledger, WriteOff(incident=incident, account=account, amount=amount, reason=reason)))


@with_ledger()
async def invoice(
    ledger: "LedgerAccess",
    provider: Annotated[str, typer.Argument(help="Provider name, as in provider:<name>:accrued.")],
    invoice_id: Annotated[str, typer.Argument(help="Invoice number; each number is paid once.")],
    amount: Amount,
    accrued: Annotated[str, typer.Option(help="Amount in USD that the ledger accrued for the invoice period.")],
) -> Report:
    """Record a paid provider invoice; a difference from the accrued amount is posted as a variance.

    Example: millrace ledger invoice openai 2026-11 --amount 41.80 --accrued 41.75
    """
    from accounting.rules.invoices import is_alarming
    from gateway.admin.manual_entries import Invoice, record_invoice

    new = Invoice(provider=provider, invoice_id=invoice_id, amount=amount, accrued=accrued)
    booked = await record_invoice(ledger, new)
    if is_alarming(new.accrued, new.amount):
        output.say("The invoice differs by more than 1 %. Check token counts and `millrace prices list`.")
    return _of(booked)


def _of(booked: "Booked") -> Report:
    posted, moves = booked.posted, booked.facts["moves"]
    facts = {"event": posted.event_seq, "was_there": posted.replayed, "amount_usd": moves[0].partition(" ")[0]}
    what = "was posted before" if posted.replayed else "posted"
    return Report(facts, f"${', $'.join(moves)} {what} (entry {posted.event_seq})")
