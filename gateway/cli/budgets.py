"""`millrace budget`: spending limits of keys, users, teams and organizations per day or month."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.cli import output
from gateway.cli.command import Group, PageLimit
from gateway.pages import PAGE_MAX

if TYPE_CHECKING:
    from gateway.admin.authority import Authority

app = Group("Spending limits.")

BudgetSpan = Literal["day", "month"]
Scope = Annotated[str, typer.Argument(help="Key, user:ID, team:ORG/NAME or organization:ID.")]
Per = Annotated[BudgetSpan, typer.Option(help="Calendar day or month (UTC).")]
Model = Annotated[str | None, typer.Option(help="Only for this model.")]


@app.with_authority("list", ("scope", "span", "model", "amount", "spent", "left", "resets_at"))
def show(
    authority: "Authority",
    scope: Annotated[str | None, typer.Argument(help="Only this scope.")] = None,
    limit: PageLimit = PAGE_MAX,
    offset: Annotated[int, typer.Option(help="Start of the next page, as shown by the previous page.", min=0)] = 0,
) -> Any:
    """List budgets with the amounts spent and left. Example: millrace budget list"""
    from gateway.admin.limits import list_budgets, scope_named

    with authority.directory.read() as session:
        name = scope and scope_named(authority, scope)
        found, place = list_budgets(session, authority, name, offset=offset, limit=limit)
    output.more_follow(limit, "--offset", place)
    return found


@app.with_authority("set", "budget of {scope} set to ${amount} per {span}")
def put(
    authority: "Authority",
    scope: Scope,
    amount: Annotated[str, typer.Argument(help="Amount in USD, e.g. 5.00.")],
    per: Per = "month",
    model: Model = None,
) -> Any:
    """Set a budget for a key, user, team or organization.

    Example: millrace budget set team:lab/vision 50 --per month
    """
    from gateway.admin.limits import NewLimit, scope_named, set_limit
    from gateway.identity.quotas import facts

    name = scope_named(authority, scope)
    return facts(set_limit(authority, NewLimit(scope=name, measure="spend", span=per, model=model, amount=amount)))


@app.with_authority("remove", "budget of {scope} removed")
def remove(authority: "Authority", scope: Scope, per: Per = "month", model: Model = None) -> Any:
    """Remove a budget. Example: millrace budget remove user:ann --per day"""
    from gateway.admin.limits import LimitName, remove_limit, scope_named

    name = LimitName(scope=scope_named(authority, scope), measure="spend", span=per, model=model)
    remove_limit(authority, name)
    return {"removed": name.model_dump()}
