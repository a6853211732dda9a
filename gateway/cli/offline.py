"""Commands on keys, users and limits, with or without a running gateway: one service call and its result each."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from

Shown = str | Sequence[str] | Callable[[Any], None]
"""How a result is shown: a sentence with names of facts, the columns of a table, or a function that prints it."""

_OPTIONS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (("data_dir", None, DataDir), ("as_json", False, AsJson))
)


def offline(
    shown: Shown, *, make: bool = False, with_secret: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a command of a function that takes an authority and returns JSON facts, or a list of them.

    The command gets the options --data-dir and --json, and acts as the machine's owner. It ends with one line if the
    service layer refuses. `make` and `with_secret` are those of `open_directory`.
    """

    def command_of(work: Callable[..., Any]) -> Callable[..., None]:
        @wraps(work)
        def command(**given: Any) -> None:
            # Commands print their help without SQLAlchemy.
            from gateway.admin.authority import Authority
            from gateway.cli.directory import BY, open_directory

            settings, as_json = settings_from(given.pop("data_dir")), given.pop("as_json")
            with open_directory(settings, make=make, with_secret=with_secret) as directory:
                facts = work(Authority(directory, BY), **given)
            if as_json:
                output.data(facts)
            elif isinstance(shown, str):
                output.say(shown.format(**given | facts))
            elif callable(shown):
                shown(facts)
            else:
                output.table(shown, [tuple(each[name] for name in shown) for each in facts], as_json=False)

        signature = inspect.signature(work)
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()][1:]
        parameters = [*own, *_OPTIONS]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return command_of
