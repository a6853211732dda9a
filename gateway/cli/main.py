"""The `millrace` command with all subcommands."""

import gc
import os
from collections import UserDict
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

# Each word's module and what it defines there: a command, or a group of commands.
_COMMANDS = {
    "up": "serving:up",
    "sell": "selling:sell",
    "join": "machines:join",
    "leave": "leave:leave",
    "nodes": "machines:nodes",
    "advise": "advise:advise",
    "plan": "advise:plan",
    "pull": "models:pull",
    "run": "models:run",
    "ps": "models:ps",
    "stop": "models:stop",
    "rm": "models:rm",
    "bench": "bench:bench",
    "chat": "chat:chat",
    "audit": "users:audit",
    "requests": "requests:requests",
    "balance": "topups:balance",
    "topup": "topups:topup",
    "statement": "topups:statement",
    "offers": "earnings:offers",
    "earnings": "earnings:earnings",
    "payout": "earnings:payout",
    "usage": "usage:usage",
    "doctor": "doctor.command:doctor",
    "version": "serving:version",
    "machines": "machines:app",
    "token": "machines:token",
    "key": "keys:app",
    "users": "users:app",
    "org": "users:organizations",
    "pool": "pool:app",
    "route": "route:app",
    "batch": "batches:app",
    "credit": "credit:app",
    "budget": "budgets:app",
    "payments": "payments:app",
    "ledger": "ledger:app",
    "prices": "prices:app",
    "identity": "identity:app",
    "market": "market:app",
    "partner": "partners:app",
    "config": "config:app",
}


class _Late(UserDict[str, Any]):
    """Commands by word. Each is imported and built when it is needed: all of them take as long as a small command."""

    def __getitem__(self, word: str) -> Any:
        found = self.data[word]
        if isinstance(found, str):
            found = self.data[word] = _build(word, found)
        return found


def _build(word: str, place: str) -> Any:
    module, _, name = place.partition(":")
    is_collecting = gc.isenabled()
    gc.disable()  # An import leaves no garbage.
    try:
        found = getattr(import_module(f"gateway.cli.{module}"), name)
    finally:
        if is_collecting:
            gc.enable()
    alone = typer.Typer(rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=word)
    else:
        alone.command(word)(found)
    return typer.main.get_group(alone).commands[word]


class _Millrace(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Late(_COMMANDS)


app = typer.Typer(
    name="millrace",
    cls=_Millrace,
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
