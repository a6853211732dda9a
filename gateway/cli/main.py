"""The `millrace` command: every subcommand by its file."""

import os

import typer

from gateway.cli import batches, keys, machines, money, people, pool, requests, route, serving

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
    # Books, keys, models and identities are made by several libraries and processes: this holds for all of them.
    before = os.umask(0o077)
    context.call_on_close(lambda: os.umask(before))


app.command("up")(serving.up)
app.command("join")(machines.join)
app.command("nodes")(machines.nodes)
app.add_typer(machines.app, name="machines")
app.add_typer(machines.token, name="token")
app.add_typer(keys.app, name="key")
app.add_typer(people.app, name="people")
app.add_typer(people.organizations, name="org")
app.command("audit")(people.audit)
app.add_typer(pool.app, name="pool")
app.add_typer(route.app, name="route")
app.command("requests")(requests.requests)
app.add_typer(batches.app, name="batch")
app.command("balance")(money.balance)
app.add_typer(money.credit, name="credit")
app.command("version")(serving.version)
