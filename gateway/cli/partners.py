"""`millrace partner`: bilateral credit lines with known gateways, without a marketplace.

Each command prints its state as one line of text for the partner; users send it by any means.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group, Report
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.times import now_ms

if TYPE_CHECKING:
    from accounting.money import Nano
    from market.credit_lines.balance import Balance
    from market.credit_lines.credit_line_service import CreditLineService
    from market.credit_lines.partnership import Partnership

app = Group("Credit lines with trading partners, without a marketplace.")

_DAY_MS = 86_400_000
_COLUMNS = ("partner", "line", "state", "bought", "sold", "paid", "received", "owed")
_TEXT_BYTES_MAX = 2**18

Partner = Annotated[str, typer.Argument(help="Start of the partner's identity, or a line ID.")]
Url = Annotated[str, typer.Option(help="Address where this gateway sells, sent to the partner.")]
To = Annotated[Path | None, typer.Option(help="File for the text to send; default: print it.")]


@app.with_settings("invite")
def invite(
    settings: Settings,
    partner: Annotated[str, typer.Argument(help="The partner's identity, from its `identity show`.")],
    they_owe: Annotated[str, typer.Option(help="Maximum in USD that the partner may owe this gateway.")],
    we_owe: Annotated[str, typer.Option(help="Maximum in USD that this gateway may owe the partner.")],
    days: Annotated[int, typer.Option(help="Days until the line expires.", min=1, max=366)] = 365,
    url: Url = "",
    to: To = None,
) -> Report:
    """Offer a credit line. Example: millrace partner invite 5f0c...e1 --they-owe 5.00 --we-owe 5.00"""
    from market.credit_lines.credit_line_service import LineOffer

    lines = _credit_lines(settings)
    partnership = lines.invite(
        LineOffer(partner, _nano(they_owe, "--they-owe"), _nano(we_owe, "--we-owe"), days * _DAY_MS), now_ms()
    )
    return _message(
        lines,
        partnership,
        url,
        to,
        f"line {partnership.line.id} opens when {partner[:16]} accepts it. Send the text to the partner,",
        "then run `millrace partner accept TEXT` with the reply",
    )


@app.with_settings("accept")
def accept(
    settings: Settings,
    text: Annotated[str, typer.Argument(help="The partner's message: text, file, or - for stdin.")],
    yes: Annotated[bool, typer.Option("--yes", help="Sign a new line without confirmation.")] = False,
    url: Url = "",
    to: To = None,
) -> Report:
    """Accept a partner's invitation, reply or payment receipt. Example: millrace partner accept their.txt"""
    lines = _credit_lines(settings)
    update = lines.heard(_text(text))
    if update.own_signature is None and lines.known(update) is None:
        position = lines.position(update)
        output.say(f"{update.partner} offers a credit line until {_date(update.ends_ms)}:")
        they_owe, we_owe = _usd(position.may_sell_nano), _usd(position.may_buy_nano)
        output.say(f"they may owe us at most ${they_owe}, we may owe them at most ${we_owe}")
        if not yes and not typer.confirm("Sign it?", err=True):
            output.fail("not signed", output.REFUSED)
    partnership, has_signed = lines.accept(update, now_ms())
    if has_signed:
        return _message(
            lines,
            partnership,
            url,
            to,
            "the line is open here. Send the text to the partner to open it there",
        )
    position = lines.position(partnership)
    text = f"line {partnership.line.id[:16]} is {_state(position)}; {_owing(position)}"
    return Report(_facts(position), text)


def _show_lines(found: list[dict[str, str]]) -> None:
    output.table(_COLUMNS, [[facts[name][:16] for name in _COLUMNS] for facts in found])


@app.with_settings("list", _show_lines)
def list_partners(settings: Settings) -> Any:
    """List credit lines: bought, sold, paid, owed, in USD. Example: millrace partner list"""
    return [_facts(each) for each in _credit_lines(settings).positions()]


@app.with_settings("paid")
def paid(
    settings: Settings,
    partner: Partner,
    in_all: Annotated[str, typer.Option(help="Total in USD that the partner has paid since the line was opened.")],
    url: Url = "",
    to: To = None,
) -> Report:
    """Confirm the total amount that a partner has paid. Example: millrace partner paid 5f0c21aa --in-all 12.50"""
    lines = _credit_lines(settings)
    partnership = lines.acknowledge(lines.partners.named(partner), _nano(in_all, "--in-all"), now_ms())
    owing = _owing(lines.position(partnership))
    return _message(lines, partnership, url, to, f"{owing}. Send the text to the partner")


@app.with_settings("tell")
def tell(settings: Settings, partner: Partner, url: Url = "", to: To = None) -> Report:
    """Print the latest message to a partner again. Example: millrace partner tell 5f0c21aa"""
    lines = _credit_lines(settings)
    return _message(lines, lines.partners.named(partner), url, to)


@app.with_settings("end")
def end(settings: Settings, partner: Partner) -> Report:
    """Close a credit line; debts remain. Example: millrace partner end 5f0c21aa"""
    lines = _credit_lines(settings)
    position = lines.position(lines.end(lines.partners.named(partner)))
    return Report(_facts(position), f"line {position.partnership.line.id[:16]} has ended; {_owing(position)}")


def _credit_lines(settings: Settings) -> "CreditLineService":
    """Return the lines of the data directory; end the command if it has no identity."""
    from market.credit_lines.credit_line_service import CreditLineService
    from market.network.identity import OwnIdentity

    folder = DataFolder(settings.data_dir)
    if not OwnIdentity(folder.market).exists:
        output.fail(f"no identity in {folder.path}. Create one with `millrace identity create`")
    return CreditLineService(folder.market, OwnIdentity.open(folder.market))


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
    return "open" if now_ms() < each.ends_ms else "expired"


def _owing(position: "Balance") -> str:
    who = "they owe us" if position.owed_nano < 0 else "we owe them"
    return f"{who} ${_usd(abs(position.owed_nano))}"


def _nano(text: str, option: str) -> "Nano":
    """Return an amount in USD; end the command if it is none."""
    from accounting.errors import AmountInvalid
    from accounting.money import parse_usd

    try:
        return parse_usd(text)
    except AmountInvalid as error:
        output.fail(f"{option}: {error}", output.WRONG_USAGE)


def _usd(amount_nano: int) -> str:
    from accounting.money import format_usd

    return format_usd(amount_nano)


def _date(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000))


def _message(
    lines: "CreditLineService", partnership: "Partnership", url: str, to: Path | None, *remarks: str
) -> Report:
    """Report a text for the partner, then remarks; with JSON it includes the line's state."""
    text = lines.text(partnership, url)
    if to is not None:
        to.write_text(text + "\n")

    def show(_: Any) -> None:
        if to is None:
            typer.echo(text)
        else:
            output.say(f"text written to {to}")
        for remark in remarks:
            output.say(remark)

    return Report(_facts(lines.position(partnership)) | {"text": text}, show)


def _text(given: str) -> str:
    from market.credit_lines.export import PREFIX

    if given.startswith(PREFIX):
        return given
    if given == "-":
        return sys.stdin.read(_TEXT_BYTES_MAX)
    with Path(given).open(errors="replace") as file:
        return file.read(_TEXT_BYTES_MAX)
