"""`millrace credit`: credits for paid lanes, given by the operator of the machine."""

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.identity.caller import OWNER
from gateway.settings import Settings

if TYPE_CHECKING:
    from accounting.ledger.postings import Posted
    from gateway.cli.store import Sessions

_DAY_NS = 86_400 * 10**9

app = typer.Typer(help="Credits for paid lanes.", no_args_is_help=True)


CreditId = Annotated[
    str | None, typer.Option("--id", help="Idempotency ID: repeating it does not give the credits again.")
]
Amount = Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")]


@app.command("add")
def add(
    amount: Amount,
    note: Annotated[str, typer.Option(help="Reason on the statement.")] = "added by the operator",
    user: Annotated[str | None, typer.Option(help="User; default: the owner.")] = None,
    pool: Annotated[str | None, typer.Option(help="Organization whose members share the credits.")] = None,
    credit_id: CreditId = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add credits to a user's balance. Example: millrace credit add 5.00"""
    from accounting.money import parse_usd
    from gateway.cli.store import saying_what_is_wrong, with_ledger

    if user is not None and pool is not None:
        output.fail("--pool: use either --user or --pool, not both", output.WRONG_USAGE)
    settings, name = settings_from(data_dir), credit_id or uuid.uuid4().hex
    with saying_what_is_wrong():
        amount_nano = parse_usd(amount)
        if pool is not None:
            pool_id = _organization(settings, pool)
            posted = with_ledger(
                settings, lambda ledger: ledger.credit_pool(name, pool_id, amount_nano, note), make=True
            )
            _tell(settings, Given(f"organization:{pool_id}", amount_nano, name, note), posted, as_json=as_json)
            return
        user_id = user or OWNER
        refuse_unknown(settings, user_id)
        posted = with_ledger(settings, lambda ledger: ledger.credit(name, user_id, amount_nano, note), make=True)
    _tell(settings, Given(f"user:{user_id}", amount_nano, name, note), posted, as_json=as_json)


@app.command("grant")
def grant(
    amount: Amount,
    user: Annotated[str, typer.Option(help="User who receives the credits.")],
    days: Annotated[int, typer.Option(help="Days until the credits expire.", min=1, max=3650)],
    note: Annotated[str, typer.Option(help="Reason on the statement.")] = "granted by the operator",
    credit_id: CreditId = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give promotional credits that expire. Example: millrace credit grant 2.00 --user ann --days 90"""
    from accounting.money import parse_usd
    from accounting.spending.credit_grants import CreditGrant
    from gateway.cli.store import open_store, saying_what_is_wrong, with_ledger

    settings, name = settings_from(data_dir), credit_id or uuid.uuid4().hex
    with saying_what_is_wrong():
        amount_nano = parse_usd(amount)
        refuse_unknown(settings, user)
        with open_store(settings, make=True) as (read, _):
            expires_ns = _end_ns(read, name, days)
        grant = CreditGrant(name, user, amount_nano, expires_ns, reason=note)
        posted = with_ledger(settings, lambda ledger: ledger.grant(grant), make=True)
    _tell(settings, Given(f"user:{user}", amount_nano, name, note, days), posted, as_json=as_json)


@app.command("list")
def list_credits(
    user: Annotated[str, typer.Option(help="User.")] = OWNER,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a user's credits in charge order. Example: millrace credit list --user ann"""
    from accounting.money import format_usd
    from accounting.rules.held import Payer
    from accounting.spending.funding_sources import credits_of
    from gateway.cli.store import open_store
    from gateway.identity.users import Users
    from runtime.errors import NotFound

    with open_store(settings_from(data_dir)) as (read, write):
        try:
            owner = Users(read, write).user(user)
        except NotFound as error:
            output.fail(f"--user: {error.message}", output.WRONG_USAGE)
        with read() as session:
            found = credits_of(session, Payer(user, owner.organization_id), time.time_ns())
    rows = [(share.account, format_usd(share.amount_nano)) for share in found]
    output.table(("account", "available_usd"), rows, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Given:
    """The parameters of a command that gave credits, for the audit log."""

    target: str
    amount_nano: int
    id: str
    note: str
    days: int | None = None


def _tell(settings: Settings, given: Given, posted: "Posted", *, as_json: bool) -> None:
    from accounting.money import format_usd
    from gateway.cli.directory import BY, open_directory

    amount_usd = format_usd(given.amount_nano)
    ends = {} if given.days is None else {"days": given.days}
    facts = {"amount_usd": amount_usd, "id": given.id, "note": given.note} | ends
    with open_directory(settings) as directory:
        directory.audit.add_once(BY, "credit.grant" if ends else "credit.add", given.target, facts, named_by="id")
    kind, _, name = given.target.partition(":")
    if as_json:
        whose = {"user" if kind == "user" else "pool": name}
        output.data(
            {"event": posted.event_seq, "amount_usd": amount_usd} | whose | {"was_there": posted.replayed} | ends
        )
        return
    what = "received this before" if posted.replayed else f"received ${amount_usd}"
    output.say(f"{name} {what} (entry {posted.event_seq})")


def _end_ns(read: "Sessions", grant_id: str, days: int) -> int:
    """Return when a grant expires; a repeated grant keeps its first expiry."""
    from accounting.spending.credit_grants import grant_named

    with read() as session:
        found = grant_named(session, grant_id)
    now_ns = time.time_ns()
    if found is None:
        return now_ns + days * _DAY_NS
    days_given = (found.grant.expires_ns - found.created_ns + _DAY_NS // 2) // _DAY_NS
    return found.grant.expires_ns if days_given == days else now_ns + days * _DAY_NS


def _organization(settings: Settings, id_or_name: str) -> str:
    from gateway.cli.store import open_store
    from gateway.identity.users import Users
    from runtime.errors import NotFound

    with open_store(settings, make=True) as (read, write):
        try:
            return Users(read, write).organization(id_or_name).organization_id
        except NotFound as error:
            output.fail(f"--pool: {error.message}", output.WRONG_USAGE)


def refuse_unknown(settings: Settings, user: str) -> None:
    """End the command for an unknown user: the first user added under this name could spend the credits."""
    from gateway.cli.store import open_store
    from gateway.identity.users import Users
    from runtime.errors import NotFound

    with open_store(settings, make=True) as (read, write):
        try:
            Users(read, write).user(user)
        except NotFound as error:
            output.fail(
                f"--user: {error.message}. Add the user with `millrace users add {user}`", output.WRONG_USAGE
            )
