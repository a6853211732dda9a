"""`millrace budget`: spending limits of keys, users, teams and organizations per day or month."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, PageLimit, settings_from
from gateway.pages import PAGE_MAX, cut

if TYPE_CHECKING:
    from gateway.identity.directory import Directory

app = typer.Typer(help="Spending limits.", no_args_is_help=True)

BudgetSpan = Literal["day", "month"]
Scope = Annotated[str, typer.Argument(help="Key, user:ID, team:ORG/NAME or organization:ID.")]
Per = Annotated[BudgetSpan, typer.Option(help="Calendar day or month (UTC).")]
Model = Annotated[str | None, typer.Option(help="Only for this model.")]

_COLUMNS = ("scope", "span", "model", "amount", "spent", "left", "resets_at")


@app.command("list")
def show(
    scope: Annotated[str | None, typer.Argument(help="Only this scope.")] = None,
    limit: PageLimit = PAGE_MAX,
    offset: Annotated[int, typer.Option(help="Start of the next page, as shown by the previous page.", min=0)] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List budgets with the amounts spent and left. Example: millrace budget list"""
    from gateway.cli.directory import open_directory
    from gateway.limits.budgets import budget_facts

    with open_directory(settings_from(data_dir)) as directory:
        if scope is None:
            quotas = directory.quotas.rows(measure="spend", offset=offset, limit=limit + 1)
        else:
            of_scope = directory.quotas.of((_named(directory, scope),))
            quotas = [quota for quota in of_scope if quota.measure == "spend"][offset : offset + limit + 1]
        shown, last = cut(quotas, limit)
        with directory.read() as session:
            found = [budget_facts(session, quota) for quota in shown]
    output.more_follow(limit, "--offset", last and offset + limit)
    output.table(_COLUMNS, [tuple(row[name] for name in _COLUMNS) for row in found], as_json=as_json)


@app.command("set")
def put(
    scope: Scope,
    amount: Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")],
    per: Per = "month",
    model: Model = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set a budget for a key, user, team or organization.

    Example: millrace budget set team:lab/vision 50 --per month
    """
    from gateway.cli.directory import BY, open_directory
    from gateway.identity.quotas import parse_quota

    with open_directory(settings_from(data_dir)) as directory:
        directory.quotas.set(parse_quota(_named(directory, scope), "spend", amount, per, model), BY)
    facts = {"scope": scope, "amount": amount, "span": per, "model": model}
    output.tell(facts, f"budget of {scope} set to ${amount} per {per}", as_json=as_json)


@app.command()
def remove(
    scope: Scope,
    per: Per = "month",
    model: Model = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove a budget. Example: millrace budget remove user:ann --per day"""
    from gateway.cli.directory import BY, open_directory
    from gateway.identity.quotas import parse_quota

    with open_directory(settings_from(data_dir)) as directory:
        directory.quotas.remove(parse_quota(_named(directory, scope), "spend", "0", per, model), BY)
    facts = {"scope": scope, "span": per, "model": model}
    output.tell({"removed": facts}, f"budget of {scope} removed", as_json=as_json)


def _named(directory: "Directory", scope: str) -> str:
    """Return an existing scope; a key may be given by its id or prefix. Raises NotFound, RequestInvalid."""
    name = scope if ":" in scope else f"key:{directory.keys.row(scope).key_id}"
    directory.quotas.organization_of(name)
    return name
