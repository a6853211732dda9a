"""`millrace budget`: what keys, people, teams and organizations may spend in a day or a month."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, PageLimit, settings_from
from gateway.paging import PAGE_MAX, cut

if TYPE_CHECKING:
    from gateway.identity.directory import Directory

app = typer.Typer(help="Budgets: limits on money.", no_args_is_help=True)

BudgetSpan = Literal["day", "month"]
Scope = Annotated[str, typer.Argument(help="A key, or person:ID, team:ORG/NAME, organization:ID.")]
Per = Annotated[BudgetSpan, typer.Option(help="A day or a month of the UTC calendar.")]
Model = Annotated[str | None, typer.Option(help="For this model alone.")]

_COLUMNS = ("scope", "span", "model", "amount", "spent", "left", "resets_at")


@app.command("list")
def show(
    scope: Annotated[str | None, typer.Argument(help="Only of this scope.")] = None,
    limit: PageLimit = PAGE_MAX,
    offset: Annotated[int, typer.Option(help="The next page: what the page before says.", min=0)] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show budgets with what is spent and left. Example: millrace budget list"""
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
    amount: Annotated[str, typer.Argument(help="USD as a decimal number, such as 5.00.")],
    per: Per = "month",
    model: Model = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a scope spend so much and no more. Example: millrace budget set team:lab/vision 50 --per month"""
    from gateway.cli.directory import BY, open_directory
    from gateway.identity.quotas import parse_quota

    with open_directory(settings_from(data_dir)) as directory:
        directory.quotas.set(parse_quota(_named(directory, scope), "spend", amount, per, model), BY)
    facts = {"scope": scope, "amount": amount, "span": per, "model": model}
    output.tell(facts, f"{scope} may spend ${amount} a {per}", as_json=as_json)


@app.command()
def remove(
    scope: Scope,
    per: Per = "month",
    model: Model = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take a budget away. Example: millrace budget remove person:ann --per day"""
    from gateway.cli.directory import BY, open_directory
    from gateway.identity.quotas import parse_quota

    with open_directory(settings_from(data_dir)) as directory:
        directory.quotas.remove(parse_quota(_named(directory, scope), "spend", "0", per, model), BY)
    facts = {"scope": scope, "span": per, "model": model}
    output.tell({"removed": facts}, f"{scope} has no such budget any more", as_json=as_json)


def _named(directory: "Directory", scope: str) -> str:
    """A scope that there is; a key may be called by its id or prefix. Raises NotFound, RequestInvalid."""
    name = scope if ":" in scope else f"key:{directory.keys.row(scope).key_id}"
    directory.quotas.organization_of(name)
    return name
