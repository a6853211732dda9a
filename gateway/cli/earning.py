"""`millrace offers`, `earnings` and `payout`: what strangers sell, what was sold to them, and the money for it."""

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.running import TIMEOUT_S, as_person, ask, borrowed_key, peek, refuse
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.data_folder import DataFolder
from gateway.settings import Settings

_ID_CHARS = 12

User = Annotated[str, typer.Option(help="Whose account, where this gateway itself is the house.")]


def offers(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what could be bought on the market, the cheapest first. Example: millrace offers"""
    found = ask(settings_from(data_dir), "GET", "/admin/market/sellers")["sellers"]
    found.sort(key=lambda row: (row["model"], Decimal(row["completion_usd_per_mtok"])))
    if as_json:
        output.data(found)
        return
    columns = (
        "model",
        "quantization",
        "prompt USD/Mtok",
        "answer USD/Mtok",
        "context",
        "seller",
        "looked at",
        "note",
    )
    rows = [
        (
            row["model"],
            row["quantization"],
            row["prompt_usd_per_mtok"],
            row["completion_usd_per_mtok"],
            row["context_tokens"],
            row["seller"][:_ID_CHARS],
            row["looked_at"],
            "suspended" if row["suspended_why"] else "newcomer" if row["is_newcomer"] else "",
        )
        for row in found
    ]
    output.table(columns, rows, as_json=False)
    if not rows:
        output.say("nothing is on offer now; `millrace market sellers` says from whom nothing is bought, and why")


def earnings(user: User = "owner", data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what was earned at the house: maturing, payable, in reserve. Example: millrace earnings"""
    with _house(settings_from(data_dir), user) as house:
        found = house.ask("GET", "/market/v1/sellers/me")
    if as_json:
        output.data(found)
        return
    earned = found["earned"]
    output.table(tuple(f"{name}_usd" for name in earned), [tuple(earned.values())], as_json=False)
    if found["barred"]:
        output.say(("barred:", "bold red"), f" {found['barred']}; nothing matures meanwhile")
    if found["probation"]:
        lacking = ", ".join(f"{count} {what}" for what, count in found["lacking"].items() if count)
        output.say(f"new here: {lacking} are lacking until earnings mature as for everybody")
    if not found["identities"]:
        output.say("no identity of yours sells at this house; `millrace sell` registers it")


def payout(
    amount: Annotated[
        str | None, typer.Argument(help="USD as a decimal number, such as 25.00; without it payouts are listed.")
    ] = None,
    onboard: Annotated[
        bool, typer.Option("--onboard", help="Print the page of Stripe's where you say where you are paid.")
    ] = False,
    payout_id: Annotated[
        str | None, typer.Option("--id", help="A name of this payout: under one name it is paid once.")
    ] = None,
    user: User = "owner",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Have payable earnings paid out by the house. Example: millrace payout 25.00"""
    if onboard and amount is not None:
        output.fail("--onboard: where you are paid comes first, then an amount", output.WRONG_USAGE)
    with _house(settings_from(data_dir), user) as house:
        if onboard:
            made = house.ask("POST", "/accounting/v1/sellers/onboard", {}, uuid.uuid4().hex)
            output.tell(made, f"open this page within minutes ({made['mode']}):", as_json=as_json)
            if not as_json:
                typer.echo(output.plain(made["url"]))
            return
        if amount is None:
            _list(house.ask("GET", "/accounting/v1/payouts?limit=20"), as_json=as_json)
            return
        opened = house.ask("POST", "/accounting/v1/payouts", {"amount": amount}, payout_id or uuid.uuid4().hex)
    output.tell(opened, f"${opened['amount']} are {opened['status']} as payout {opened['id']}", as_json=as_json)


@dataclass(frozen=True, slots=True)
class _House:
    """Where this machine's sales are booked, and a key of the account there; `own` where it is this gateway."""

    settings: Settings
    root: str
    key: str
    is_own: bool

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, once: str | None = None) -> Any:
        """Its answer; ends the command when there is none. What is called `once` is done once."""
        import httpx

        headers = as_person(self.key, once)
        if self.is_own:
            return ask(self.settings, method, path, body, headers=headers)
        try:
            response = httpx.request(method, self.root + path, headers=headers, json=body, timeout=TIMEOUT_S)
        except httpx.HTTPError as error:
            output.fail(f"the house at {self.root} does not answer: {error}; ask again later", output.UNREACHABLE)
        if response.status_code != 200:
            refuse(response)
        return response.json()


@contextmanager
def _house(settings: Settings, user: str) -> Generator[_House]:
    """The house that the settings name for selling, else this gateway where it is one."""
    selling = settings.selling
    if selling.house_url is not None:
        if selling.house_key is None:
            output.fail("selling.house_key is missing: the key of your account at the house", output.WRONG_USAGE)
        yield _House(settings, selling.house_url.rstrip("/"), selling.house_key.get_secret_value(), is_own=False)
        return
    if peek(DataFolder(settings.data_dir).read_running(), "/market/v1/house") is None:
        output.fail(
            "no house is named, and no gateway that is one runs here: set selling.house_url and "
            "selling.house_key; what friends owe is in `millrace friend list`",
            output.WRONG_USAGE,
        )
    with borrowed_key(settings, "earnings", user, lasts_s=600) as key:
        yield _House(settings, "", key, is_own=True)


def _list(found: dict[str, Any], *, as_json: bool) -> None:
    columns = ("id", "amount", "status", "attempt", "reason", "created")
    output.table(columns, [tuple(row[name] for name in columns) for row in found["data"]], as_json=as_json)
