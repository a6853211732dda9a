"""`millrace payments`: the state of payments through Stripe."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group
from gateway.settings import Settings
from runtime.settings import SettingsInvalid
from runtime.times import at

if TYPE_CHECKING:
    from gateway.admin.authority import Authority

app = Group("Payments through Stripe.")

_LISTS = ("failures", "frozen", "frozen_sellers", "payouts_given_up")


@app.callback()
def payments() -> None:
    """Payments through Stripe."""


def _show(facts: dict[str, Any]) -> None:
    found = facts["reconciliation"] or {}
    row = {
        "mode": facts["mode"],
        "waiting": facts["waiting"],
        "failed": facts["failed"],
        "frozen": len(facts["frozen"]),
        "reconciled": at(facts["reconciled_ns"]) if facts["reconciled_ns"] else "never",
        "unmatched": found.get("unmatched_count"),
        "difference_usd": found.get("difference"),
    }
    output.table(tuple(row), [tuple(row.values())])
    for what, rows in (("unmatched", found.get("unmatched", [])), *((name, facts[name]) for name in _LISTS)):
        for one in rows:
            output.say((f"{what}:", "bold red"), " " + ", ".join(f"{name} {value}" for name, value in one.items()))


@app.with_authority("status", _show)
def status(authority: "Authority", settings: Settings) -> Any:
    """Show mode, queued and failed webhooks, and the last reconciliation. Example: millrace payments status"""
    from gateway.admin.payments import state_of_payments

    with authority.directory.read() as session:
        return state_of_payments(session, _mode(settings))


@app.with_authority("retry", "The running gateway retries {message} within seconds.")
def retry(
    authority: "Authority",
    message: Annotated[str, typer.Argument(help="Webhook ID, as shown by `millrace payments status`: evt_...")],
) -> Any:
    """Retry a failed Stripe webhook. Example: millrace payments retry evt_1"""
    from gateway.admin.payments import retry_webhook

    retry_webhook(authority.directory, authority.actor, message)
    return {"retried": message}


def _mode(settings: Settings) -> str:
    from accounting.payments.client import is_live
    from gateway.billing.payments.factory import secret_key

    if not settings.payments.is_enabled:
        return "off"
    try:
        return "live" if is_live(secret_key(settings.payments)) else "test"
    except SettingsInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)
