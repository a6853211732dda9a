"""`millrace offers`, `earnings` and `payout`: marketplace offers, what was sold, and payouts."""

import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Report, with_settings
from gateway.cli.gateway_client import ask, borrowed_key, peek, send, user_headers
from gateway.settings import Settings
from runtime.data_folder import DataFolder

_ID_CHARS = 12
_PAYOUT = ("id", "amount", "status", "attempt", "reason", "created")

User = Annotated[str, typer.Option(help="User whose account to use, if this gateway is the marketplace.")]


_OFFER: Mapping[str, output.Cell] = {
    "model": "model",
    "quantization": "quantization",
    "input USD/Mtok": "prompt_usd_per_mtok",
    "output USD/Mtok": "completion_usd_per_mtok",
    "context": "context_tokens",
    "seller": lambda row: row["seller"][:_ID_CHARS],
    "audit": "looked_at",
    "note": lambda row: "suspended" if row["suspended_why"] else "new" if row["is_newcomer"] else "",
}


def _show_offers(found: list[dict[str, Any]]) -> None:
    output.table_of(_OFFER, found)
    if not found:
        output.say("no offers now; `millrace market sellers` shows which sellers are excluded, and why")


@with_settings(_show_offers)
def offers(settings: Settings) -> Any:
    """List marketplace offers, cheapest first. Example: millrace offers"""
    found = ask(settings, "GET", "/admin/market/sellers")["sellers"]
    found.sort(key=lambda row: (row["model"], Decimal(row["completion_usd_per_mtok"])))
    return found


def _show_earnings(found: dict[str, Any]) -> None:
    earned = found["earned"]
    output.table(tuple(f"{name}_usd" for name in earned), [tuple(earned.values())])
    if found["suspended"]:
        output.say(("suspended:", "bold red"), f" {found['suspended']}; pending earnings stay pending")
    if found["probation"]:
        lacking = ", ".join(f"{count} {what}" for what, count in found["lacking"].items() if count)
        output.say(f"still needed to leave the new-seller period: {lacking}")
    if not found["identities"]:
        output.say("none of your identities sells on this marketplace; `millrace sell` registers one")


@with_settings(_show_earnings)
def earnings(settings: Settings, user: User = "owner") -> Any:
    """Show marketplace earnings: pending, available, in reserve. Example: millrace earnings"""
    with _marketplace(settings, user) as marketplace:
        return marketplace.ask("GET", "/market/v1/sellers/me")


@with_settings()
def payout(
    settings: Settings,
    amount: Annotated[
        str | None, typer.Argument(help="Amount in USD, e.g. 25.00; without it payouts are listed.")
    ] = None,
    onboard: Annotated[
        bool, typer.Option("--onboard", help="Print a link to set up your payout account at Stripe.")
    ] = False,
    payout_id: Annotated[
        str | None, typer.Option("--id", help="Idempotency ID: repeating it does not pay out again.")
    ] = None,
    user: User = "owner",
) -> Any:
    """Pay out available earnings. Example: millrace payout 25.00"""
    if onboard and amount is not None:
        output.fail("--onboard: set up the payout account first, then request an amount", output.WRONG_USAGE)
    with _marketplace(settings, user) as marketplace:
        if onboard:
            once = uuid.uuid4().hex
            return Report(marketplace.ask("POST", "/accounting/v1/sellers/onboard", {}, once), _show_link)
        if amount is None:
            listed = marketplace.ask("GET", "/accounting/v1/payouts?limit=20")["data"]
            return Report([{name: row[name] for name in _PAYOUT} for row in listed], _PAYOUT)
        once = payout_id or uuid.uuid4().hex
        opened = marketplace.ask("POST", "/accounting/v1/payouts", {"amount": amount}, once)
    return Report(opened, f"payout {opened['id']} of ${opened['amount']}: {opened['status']}")


def _show_link(made: dict[str, Any]) -> None:
    output.say(f"open this page within a few minutes ({made['mode']}):")
    typer.echo(output.plain(made["url"]))


@dataclass(frozen=True, slots=True)
class _Marketplace:
    """The marketplace where this machine's sales are posted, and a key of the account there."""

    root: str
    key: str
    is_own: bool

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, once: str | None = None) -> Any:
        """Return the answer; end the command if there is none. `once` is the idempotency key."""
        return send(method, self.root + path, user_headers(self.key, once), body, is_own=self.is_own)


@contextmanager
def _marketplace(settings: Settings, user: str) -> Generator[_Marketplace]:
    """Yield the marketplace configured for selling, else this gateway if it is one."""
    selling = settings.selling
    if selling.marketplace_url is not None:
        if selling.marketplace_key is None:
            output.fail(
                "selling.marketplace_key is missing; set it to the key of your marketplace account",
                output.WRONG_USAGE,
            )
        key = selling.marketplace_key.get_secret_value()
        yield _Marketplace(selling.marketplace_url.rstrip("/"), key, is_own=False)
        return
    running = DataFolder(settings.data_dir).read_running()
    if running is None or peek(running, "/market/v1/marketplace") is None:
        output.fail(
            "no marketplace is configured, and none is running here: set selling.marketplace_url and "
            "selling.marketplace_key; `millrace partner list` shows debts of trading partners",
            output.WRONG_USAGE,
        )
    with borrowed_key(settings, "earnings", user, lasts_s=600) as key:
        yield _Marketplace(running["base_url"].removesuffix("/v1"), key, is_own=True)
