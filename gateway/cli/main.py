"""The `millrace` command with all subcommands."""

import os

import typer

from gateway.cli import (
    advise,
    batches,
    bench,
    budgets,
    by_hand,
    chat,
    config,
    credit,
    earnings,
    identity,
    keys,
    leave,
    ledger,
    machines,
    market,
    models,
    partners,
    payments,
    pool,
    prices,
    requests,
    route,
    selling,
    serving,
    topups,
    usage,
    users,
)
from gateway.cli.doctor import command as doctor

app = typer.Typer(
    name="millrace",
    help="One OpenAI base URL in front of everything you can compute on.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)


@app.callback()
def prepare(context: typer.Context) -> None:
    """One OpenAI base URL in front of everything you can compute on."""
    # Several libraries and processes create the ledger, keys, models and identities: the umask covers all of them.
    before = os.umask(0o077)
    context.call_on_close(lambda: os.umask(before))


app.command("up")(serving.up)
app.command("sell")(selling.sell)
app.command("join")(machines.join)
app.command("leave")(leave.leave)
app.command("nodes")(machines.nodes)
app.command("advise")(advise.advise)
app.command("plan")(advise.plan)
app.command("pull")(models.pull)
app.command("run")(models.run)
app.command("ps")(models.ps)
app.command("stop")(models.stop)
app.command("rm")(models.rm)
app.command("bench")(bench.bench)
app.command("chat")(chat.chat)
app.add_typer(machines.app, name="machines")
app.add_typer(machines.token, name="token")
app.add_typer(keys.app, name="key")
app.add_typer(users.app, name="users")
app.add_typer(users.organizations, name="org")
app.command("audit")(users.audit)
app.add_typer(pool.app, name="pool")
app.add_typer(route.app, name="route")
app.command("requests")(requests.requests)
app.add_typer(batches.app, name="batch")
app.command("balance")(topups.balance)
app.command("topup")(topups.topup)
app.command("statement")(topups.statement)
app.command("offers")(earnings.offers)
app.command("earnings")(earnings.earnings)
app.command("payout")(earnings.payout)
credit.app.command("goodwill")(by_hand.goodwill)
app.add_typer(credit.app, name="credit")
app.command("usage")(usage.usage)
app.add_typer(budgets.app, name="budget")
app.add_typer(payments.app, name="payments")
app.add_typer(ledger.app, name="ledger")
app.add_typer(prices.app, name="prices")
app.add_typer(identity.app, name="identity")
app.add_typer(market.app, name="market")
app.add_typer(partners.app, name="partner")
app.command("doctor")(doctor.doctor)
app.add_typer(config.app, name="config")
app.command("version")(serving.version)
