"""Makes commands of functions that call one service: adds --data-dir and --json, shows results and refusals."""

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.pages import PAGE_MAX
from gateway.settings import Settings, read_settings
from runtime.settings import SettingsInvalid

DataDir = Annotated[Path | None, typer.Option(help="Data directory.", show_default=False)]
PageLimit = Annotated[int, typer.Option(help="Maximum number of rows.", min=1, max=PAGE_MAX)]
AsJson = Annotated[bool, typer.Option("--json", help="Output JSON on stdout.")]

Work = Callable[..., Any]
Command = Callable[..., None]
Shown = str | Sequence[str] | Mapping[str, output.Cell] | Callable[[Any], None]
"""How facts are shown: a sentence with names of facts, a table's columns, or a function that prints them."""

_OPTIONS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("context", inspect.Parameter.empty, typer.Context),
        ("data_dir", None, DataDir),
        ("as_json", False, AsJson),
    )
)
_GIVEN = ("settings", "context", "as_json")

# Parameters of commands for fields of the service layer that have other names.
_PARAMETERS = {
    "completion": "completion_usd_per_mtok",
    "completion_usd_per_mtok": "completion",
    "expires_in_s": "expires",
    "grace_s": "grace",
    "id": "organization",
    "may_administer": "admin",
    "models": "model",
    "organization": "pool",
    "ports": "port",
    "prompt": "prompt_usd_per_mtok",
    "prompt_usd_per_mtok": "prompt",
    "reason": "note",
    "scope": "target",
    "span": "per",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a command found or did: JSON facts, how users see them (here a text is shown as it is), the exit status."""

    facts: Any
    shown: Shown
    status: int = 0


class RefusedByGateway(Exception):
    """The gateway's error: `field` is the request's field that is to blame, `status` the command's exit status."""

    def __init__(self, message: str, field: str | None, status: int) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


def with_settings(shown: Shown = "") -> Callable[[Work], Command]:
    """Make a command of a function that takes the settings.

    The function returns JSON facts, a `Report`, or None if it has shown everything itself. If it has parameters named
    `settings`, `context` or `as_json`, it gets these too.
    """
    return lambda work: _command(work, shown, lambda settings, act: act(settings))


def with_authority(
    shown: Shown = "", *, make: bool = False, with_secret: bool = False
) -> Callable[[Work], Command]:
    """Make a command of a function that takes the authority of the machine's owner, with or without a running gateway.

    `make` and `with_secret` are those of `open_directory`; the rest is as in `with_settings`.
    """

    def run(settings: Settings, act: Work) -> Any:
        # Commands print their help without SQLAlchemy.
        from gateway.admin.authority import Authority
        from gateway.cli.store import BY, open_directory

        with open_directory(settings, make=make, with_secret=with_secret) as directory:
            return act(Authority(directory, BY))

    return lambda work: _command(work, shown, run)


def with_ledger(shown: Shown = "") -> Callable[[Work], Command]:
    """Make a command of an asynchronous function that takes access to the ledger; the rest is as in `with_settings`."""

    def run(settings: Settings, act: Work) -> Any:
        from gateway.cli.store import run_on_ledger

        return run_on_ledger(settings, act)

    return lambda work: _command(work, shown, run)


class Group(typer.Typer):
    """Commands under one word; each is made as by the functions above."""

    def __init__(self, text: str, **more: Any) -> None:
        super().__init__(help=text, **({"no_args_is_help": True} | more))

    def with_settings(self, name: str, shown: Shown = "") -> Callable[[Work], Command]:
        return lambda work: self.command(name)(with_settings(shown)(work))

    def with_authority(self, name: str, shown: Shown = "", **tables: bool) -> Callable[[Work], Command]:
        return lambda work: self.command(name)(with_authority(shown, **tables)(work))

    def with_ledger(self, name: str, shown: Shown = "") -> Callable[[Work], Command]:
        return lambda work: self.command(name)(with_ledger(shown)(work))


def settings_from(data_dir: Path | None, **sections: dict[str, Any]) -> Settings:
    """Return the settings, with command-line values taking precedence; end the command if one is invalid."""
    given: dict[str, Any] = {
        name: values
        for name, section in sections.items()
        if (values := {key: value for key, value in section.items() if value is not None})
    }
    try:
        return read_settings(**given | ({"data_dir": data_dir} if data_dir else {}))
    except SettingsInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)


@contextmanager
def refusals(context: typer.Context) -> Generator[None]:
    """End the command with one line if a service refuses what it was asked, or a file cannot be used."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise  # The command has ended itself: do not import every package's errors for that.
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        message, field, status = refusal
        user = context.params.get("user")
        if user and message == f"User '{user}' not found.":
            message = f"{message} Add the user with `millrace users add {user}`"
        output.fail(_by_option(context, message, field), status)


def _command(work: Work, shown: Shown, run: Callable[[Settings, Work], Any]) -> Command:
    @wraps(work)
    def command(*, context: typer.Context, data_dir: Path | None, as_json: bool, **given: Any) -> None:
        settings = settings_from(data_dir)
        values = {"settings": settings, "context": context, "as_json": as_json}
        own = {name: values[name] for name in asked}
        with refusals(context):
            found = run(settings, lambda opened: work(opened, **given, **own))
            report = found if isinstance(found, Report) else Report(found, _filled(shown, given, found))
            if as_json and report.facts is not None:
                output.data(report.facts)
            elif report.facts is not None:
                _show(report)
        if report.status:
            raise typer.Exit(report.status)

    signature = inspect.signature(work)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()][1:]
    asked = {each.name for each in parameters} & set(_GIVEN)
    parameters = [*(each for each in parameters if each.name not in asked), *_OPTIONS]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _filled(shown: Shown, given: dict[str, Any], facts: Any) -> Shown:
    if not isinstance(shown, str):
        return shown
    return shown.format(**given | (facts if isinstance(facts, dict) else {}))


def _show(report: Report) -> None:
    shown = report.shown
    if callable(shown):
        shown(report.facts)
    elif not isinstance(shown, str):
        output.table_of(shown if isinstance(shown, Mapping) else {name: name for name in shown}, report.facts)
    elif shown:
        output.say(shown)


def _refusal(error: Exception) -> tuple[str, str | None, int] | None:
    """Return an error's text, the request's field that is to blame, and the exit status; None for a bug."""
    import sqlite3

    from pydantic import ValidationError
    from sqlalchemy.exc import SQLAlchemyError

    from accounting.errors import AccountUnknown, AmountInvalid, LedgerError, PostingInvalid
    from accounting.payments.errors import PaymentError
    from accounting.proofs.kept import CheckpointUnusable
    from accounting.proofs.signing_key import SigningKeyUnusable
    from cluster.errors import ModelError
    from gateway.admin.fields import refusal_of
    from market.errors import MarketError
    from runtime.errors import NotFound, RequestInvalid, ServiceError

    match error:
        case ValidationError():
            problem = error.errors(include_url=False)[0]
            wrong = refusal_of(problem, problem["loc"])
            return wrong.message, wrong.param, output.WRONG_USAGE
        case RefusedByGateway():
            return str(error), error.field, error.status
        case NotFound() | RequestInvalid():
            return error.message, error.param, output.WRONG_USAGE
        case AccountUnknown() | AmountInvalid() | PostingInvalid() | PaymentError():
            return str(error), None, output.WRONG_USAGE
        case (
            LedgerError()
            | ServiceError()
            | MarketError()
            | ModelError()
            | CheckpointUnusable()
            | SigningKeyUnusable()
            | SettingsInvalid()
        ):
            return str(error), None, output.FAILED
        case SQLAlchemyError():
            text = f"the database failed: {type(error).__name__}; run `millrace doctor` to find the reason"
            return text, None, output.FAILED
        case sqlite3.Error():
            return f"cannot read the records of the market: {error}", None, output.FAILED
        case ConnectionError() | TimeoutError():
            return None  # The reader of stdout has left, or it is a bug: neither is about a file.
        case OSError(filename=name):
            # A full disk is reported without a file.
            reason = error.strerror or str(error)
            return f"{name}: {reason}" if name else reason, None, output.FAILED
    return None


def _by_option(context: typer.Context, message: str, field: str | None) -> str:
    """Name the option or argument for the service layer's field, if the command has one."""
    if field is None:
        return message
    found = {each.name: each for each in context.command.params}
    name = field.partition(".")[0]
    parameter = found.get(f"new_{name}") or found.get(name) or found.get(_PARAMETERS.get(name, ""))
    if parameter is None:
        return message
    is_option = parameter.param_type_name == "option"
    shown = max(parameter.opts, key=len) if is_option else str(parameter.name).upper()
    return f"{shown}: {message.removeprefix(f'{field}: ')}"
