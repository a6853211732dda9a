"""`millrace payments`: the state of payments through Stripe."""

from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.settings import Settings
from runtime.settings import SettingsInvalid
from runtime.times import at

app = typer.Typer(help="Payments through Stripe.", no_args_is_help=True)

_LISTS = ("failures", "frozen", "frozen_sellers", "payouts_given_up")


@app.callback()
def payments() -> None:
    """Payments through Stripe."""


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show mode, queued and failed webhooks, and the last reconciliation. Example: millrace payments status"""
    from accounting.payments.status_report import status_report
    from gateway.cli.store import open_store

    settings = settings_from(data_dir)
    with open_store(settings) as (read, _), read() as session:
        facts: dict[str, Any] = {"mode": _mode(settings), **status_report(session)}
    output.only_data(facts, as_json=as_json)
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
    output.table(tuple(row), [tuple(row.values())], as_json=False)
    for what, rows in (("unmatched", found.get("unmatched", [])), *((name, facts[name]) for name in _LISTS)):
        for one in rows:
            output.say((f"{what}:", "bold red"), " " + ", ".join(f"{name} {value}" for name, value in one.items()))


@app.command()
def retry(
    message: Annotated[str, typer.Argument(help="Webhook ID, as shown by `millrace payments status`: evt_...")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Retry a failed Stripe webhook. Example: millrace payments retry evt_1"""
    from accounting.payments.errors import PaymentError
    from gateway.admin.payments import retry_webhook
    from gateway.cli.directory import BY, open_directory

    with open_directory(settings_from(data_dir)) as directory:
        try:
            retry_webhook(directory, BY, message)
        except PaymentError as error:
            output.fail(str(error), output.WRONG_USAGE)
    text = f"The running gateway retries {message} within seconds."
    output.tell({"retried": message}, text, as_json=as_json)


def _mode(settings: Settings) -> str:
    from accounting.payments.client import is_live
    from gateway.billing.payments.factory import secret_key

    if not settings.payments.is_enabled:
        return "off"
    try:
        return "live" if is_live(secret_key(settings.payments)) else "test"
    except SettingsInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)
