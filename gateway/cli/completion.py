"""Shell completion: models, keys and machines of the running gateway; silently empty without one."""

from collections.abc import Callable
from typing import Any

import typer

from gateway.cli.gateway_client import peek
from gateway.settings import read_settings
from runtime.data_folder import DataFolder
from runtime.settings import SettingsInvalid

_SHOWN_MAX = 200


def _completed(find: Callable[[dict[str, Any]], list[str]]) -> Callable[[typer.Context, str], list[str]]:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        running = _running(context)
        if running is None:
            return []
        found = dict.fromkeys(name for name in find(running) if name.startswith(incomplete))
        return list(found)[:_SHOWN_MAX]

    return complete


def _running(context: typer.Context) -> dict[str, Any] | None:
    given = context.params.get("data_dir")
    try:
        settings = read_settings(**({"data_dir": given} if given else {}))
    except SettingsInvalid:
        return None
    return DataFolder(settings.data_dir).read_running()


def _models(running: dict[str, Any]) -> list[str]:
    cluster, backends = peek(running, "/admin/cluster"), peek(running, "/admin/pool")
    own = [model["model"] for model in cluster["deployments"]] if cluster else []
    return own + [name for backend in backends or [] for name in backend["models"]]


def _keys(running: dict[str, Any]) -> list[str]:
    found = (peek(running, "/admin/keys") or {}).get("keys", [])
    return [row["prefix"] for row in found if row["revoked_ns"] is None]


def _machines(running: dict[str, Any]) -> list[str]:
    return [row["node"] for row in peek(running, "/admin/machines") or [] if not row["removed_s"]]


def _backends(running: dict[str, Any]) -> list[str]:
    return [row["name"] for row in peek(running, "/admin/pool") or []]


def _argument(find: Callable[[dict[str, Any]], list[str]]) -> Callable[[str], Any]:
    """Return a function like typer's Argument: it takes the help text."""
    return lambda text: typer.Argument(help=text, autocompletion=_completed(find))


Model, Key, Machine, Backend = (_argument(find) for find in (_models, _keys, _machines, _backends))
"""Arguments with a model's name, a key's id or prefix, a machine's name, and a pool backend's name."""


def model_names(text: str) -> Any:
    """An option with a model's name."""
    return typer.Option(help=text, autocompletion=_completed(_models))
