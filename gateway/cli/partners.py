"""`millrace partner`: bilateral credit lines with known gateways, without a marketplace.

Each command prints its state as one line of text for the partner; users send it by any means.
"""

import sqlite3
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from market.credit_lines.balance import Balance
    from market.credit_lines.credit_line_service import CreditLineService

app = typer.Typer(help="Credit lines with trading partners, without a marketplace.", no_args_is_help=True)

_DAY_MS = 86_400_000
_TEXT_BYTES_MAX = 2**18

Partner = Annotated[str, typer.Argument(help="Start of the partner's identity, or a line ID.")]
Url = Annotated[str, typer.Option(help="Address where this gateway sells, sent to the partner.")]
To = Annotated[Path | None, typer.Option(help="File for the text to send; default: print it.")]


@app.command("invite")
def invite(
    partner: Annotated[str, typer.Argument(help="The partner's identity, from its `identity show`.")],
    they_owe: Annotated[str, typer.Option(help="Maximum in USD that the partner may owe this gateway.")],
    we_owe: Annotated[str, typer.Option(help="Maximum in USD that this gateway may owe the partner.")],
    days: Annotated[int, typer.Option(help="Days until the line expires.", min=1, max=366)] = 365,
    url: Url = "",
    to: To = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Offer a credit line. Example: millrace partner invite 5f0c...e1 --they-owe 5.00 --we-owe 5.00"""
    from accounting.money import parse_usd
    from market.credit_lines.credit_line_service import LineOffer

    with _desk(data_dir) as desk:
        line_offer = LineOffer(partner, parse_usd(they_owe), parse_usd(we_owe), days * _DAY_MS)
        partnership = desk.invite(line_offer, _now_ms())
        text = f"line {partnership.line.id} opens when {partner[:16]} accepts it. Send the text to the partner,"
        _give(desk.text(partnership, url), to, desk.position(partnership), as_json=as_json)
        if not as_json:
            output.say(text)
            output.say("then run `millrace partner accept TEXT` with the reply")


@app.command("accept")
def accept(
    text: Annotated[str, typer.Argument(help="The partner's message: text, file, or - for stdin.")],
    yes: Annotated[bool, typer.Option("--yes", help="Sign a new line without confirmation.")] = False,
    url: Url = "",
    to: To = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accept a partner's invitation, reply or payment receipt. Example: millrace partner accept their.txt"""
    with _desk(data_dir) as desk:
        update = desk.heard(_text(text))
        if update.own_signature is None and desk.known(update) is None:
            position = desk.position(update)
            output.say(f"{update.partner} offers a credit line until {_date(update.ends_ms)}:")
            they_owe, we_owe = _usd(position.may_sell_nano), _usd(position.may_buy_nano)
            output.say(f"they may owe us at most ${they_owe}, we may owe them at most ${we_owe}")
            if not yes and not typer.confirm("Sign it?", err=True):
                output.fail("not signed", output.REFUSED)
        partnership, has_signed = desk.accept(update, _now_ms())
        if has_signed:
            _give(desk.text(partnership, url), to, desk.position(partnership), as_json=as_json)
            if not as_json:
                output.say("the line is open here. Send the text to the partner to open it there")
            return
        position = desk.position(partnership)
        text = f"line {partnership.line.id[:16]} is {_state(position)}; {_owing(position)}"
        output.tell(_facts(position), text, as_json=as_json)


@app.command("list")
def list_partners(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List credit lines: bought, sold, paid, owed, in USD. Example: millrace partner list"""
    with _desk(data_dir) as desk:
        positions = desk.positions()
        output.only_data([_facts(each) for each in positions], as_json=as_json)
        columns = ("partner", "line", "state", "bought", "sold", "paid", "received", "owed")
        rows = [[str(_facts(each)[name])[:16] for name in columns] for each in positions]
        output.table(columns, rows, as_json=False)


@app.command("paid")
def paid(
    partner: Partner,
    in_all: Annotated[str, typer.Option(help="Total in USD that the partner has paid since the line was opened.")],
    url: Url = "",
    to: To = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Confirm the total amount that a partner has paid. Example: millrace partner paid 5f0c21aa --in-all 12.50"""
    from accounting.money import parse_usd

    with _desk(data_dir) as desk:
        partnership = desk.acknowledge(desk.partners.named(partner), parse_usd(in_all), _now_ms())
        _give(desk.text(partnership, url), to, desk.position(partnership), as_json=as_json)
        if not as_json:
            output.say(f"{_owing(desk.position(partnership))}. Send the text to the partner")


@app.command("tell")
def tell(
    partner: Partner,
    url: Url = "",
    to: To = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the latest message to a partner again. Example: millrace partner tell 5f0c21aa"""
    with _desk(data_dir) as desk:
        partnership = desk.partners.named(partner)
        _give(desk.text(partnership, url), to, desk.position(partnership), as_json=as_json)


@app.command("end")
def end(partner: Partner, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Close a credit line; debts remain. Example: millrace partner end 5f0c21aa"""
    with _desk(data_dir) as desk:
        position = desk.position(desk.end(desk.partners.named(partner)))
        text = f"line {position.partnership.line.id[:16]} has ended; {_owing(position)}"
        output.tell(_facts(position), text, as_json=as_json)


@contextmanager
def _desk(data_dir: Path | None) -> Generator["CreditLineService"]:
    """Yield the lines of the data directory; end the command with one line on an error."""
    from accounting.errors import AmountInvalid
    from accounting.proofs.signing_key import SigningKeyUnusable
    from market.credit_lines.credit_line_service import CreditLineService
    from market.errors import MarketError
    from market.network.identity import OwnIdentity
    from runtime.data_folder import DataFolder
    from runtime.settings import SettingsInvalid

    folder = DataFolder(settings_from(data_dir).data_dir)
    try:
        if not OwnIdentity(folder.market).exists:
            output.fail(f"no identity in {folder.path}. Create one with `millrace identity create`")
        yield CreditLineService(folder.market, OwnIdentity.open(folder.market))
    except AmountInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)
    except (MarketError, SigningKeyUnusable, SettingsInvalid) as error:
        output.fail(str(error))
    except sqlite3.Error as error:
        output.fail(f"cannot read the trade records: {error}")
    except OSError as error:
        output.fail(f"{error.filename or folder.path}: {error.strerror}")


def _facts(position: "Balance") -> dict[str, str]:
    each = position.partnership
    return {
        "partner": each.partner,
        "line": each.line.id,
        "state": _state(position),
        "ends": _date(each.ends_ms),
        "url": each.url,
        "they_may_owe": _usd(each.line.owes_max_nano(each.partner)),
        "we_may_owe": _usd(each.line.owes_max_nano(each.own)),
        "bought": _usd(position.bought_nano),
        "sold": _usd(position.sold_nano),
        "claimed": _usd(position.claimed_nano),
        "paid": _usd(position.paid_nano),
        "received": _usd(position.received_nano),
        "owed": _usd(position.owed_nano),
    }


def _state(position: "Balance") -> str:
    each = position.partnership
    if each.is_ended:
        return "ended"
    if not each.is_open:
        return "offered"
    return "open" if _now_ms() < each.ends_ms else "expired"


def _owing(position: "Balance") -> str:
    who = "they owe us" if position.owed_nano < 0 else "we owe them"
    return f"{who} ${_usd(abs(position.owed_nano))}"


def _usd(amount_nano: int) -> str:
    from accounting.money import format_usd

    return format_usd(amount_nano)


def _date(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000))


def _give(text: str, to: Path | None, position: "Balance", *, as_json: bool) -> None:
    """Output the text for the partner; with JSON it includes the line's state."""
    if to is not None:
        to.write_text(text + "\n")
    if as_json:
        output.data(_facts(position) | {"text": text})
    elif to is None:
        typer.echo(text)
    else:
        output.say(f"text written to {to}")


def _text(given: str) -> str:
    from market.credit_lines.export import PREFIX

    if given.startswith(PREFIX):
        return given
    if given == "-":
        return sys.stdin.read(_TEXT_BYTES_MAX)
    with Path(given).open(errors="replace") as file:
        return file.read(_TEXT_BYTES_MAX)


def _now_ms() -> int:
    return time.time_ns() // 10**6
