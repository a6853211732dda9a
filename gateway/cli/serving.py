"""`millrace up`: start a gateway, its local nodes and its cluster."""

import asyncio
import os
from collections.abc import Callable
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from gateway.cli import output
from gateway.data_folder import DataFolder
from gateway.settings import Settings, SettingsInvalid, read_settings

if TYPE_CHECKING:
    from gateway.serving import Running

DataDir = Annotated[Path | None, typer.Option(help="Folder of everything kept.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Data as JSON on stdout.")]


def version() -> None:
    """Print the version. Example: millrace version"""
    output.data({"millrace": package_version("millrace")})


def up(
    model: Annotated[str | None, typer.Option(help="Model to serve: a folder or a Hugging Face id.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes to start on this machine.", min=0)] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port, 0 for a free one.", min=0, max=65535)] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Start the gateway. Example: millrace up --model demo/model --nodes 2"""
    settings = settings_from(
        data_dir, server={"host": host, "port": port}, cluster={"model": model, "nodes": nodes}
    )
    # Importing the gateway takes a second; `millrace --help` should not.
    from cluster.errors import ModelError
    from gateway.database import DatabaseUnusable
    from gateway.observability import configure_logs
    from gateway.serving import run

    configure_logs(settings.log.level, settings.log.format)
    folder = DataFolder(settings.data_dir)
    try:
        folder.prepare()
        folder.lock()
        with _Hashing() as hashing:
            _event_loop(run(settings, folder, lambda running: _announce(running, as_json), hashing.advance))
    except (SettingsInvalid, ModelError, DatabaseUnusable) as error:
        output.fail(str(error))


def settings_from(data_dir: Path | None, **sections: dict[str, Any]) -> Settings:
    """Settings with what the command line gave before all else; ends the command when one is wrong."""
    given: dict[str, Any] = {
        name: values
        for name, section in sections.items()
        if (values := {key: value for key, value in section.items() if value is not None})
    }
    try:
        return read_settings(**given | ({"data_dir": data_dir.absolute()} if data_dir else {}))
    except SettingsInvalid as error:
        output.fail(str(error), code=2)


def _announce(running: "Running", as_json: bool) -> None:
    """Say where the gateway is, with a key that works: the first one, or one made for whoever scripts this."""
    keys, lanes = running.services.keys, running.services.settings.policy.lanes
    first = not keys.rows()
    token = keys.create("first key" if first else "up --json", lanes) if first or as_json else None
    if as_json:
        output.data(
            {
                "base_url": running.base_url,
                "api_key": token,
                "console_url": running.console_url,
                "pid": os.getpid(),
            }
        )
        return
    say = output.talk.print
    say(f"[bold]base URL[/]     {running.base_url}", highlight=False)
    say(f"[bold]API key[/]      {token or 'made earlier; `millrace key create` makes another'}", highlight=False)
    say(f"[bold]console[/]      {running.console_url}", highlight=False)
    status, reason = running.services.controller.status
    say(f"[bold]cluster[/]      {status}: {reason}", highlight=False)
    say("[bold]more machines[/] `millrace token create` prints the command for each", highlight=False)


def _event_loop(main: Any) -> None:
    try:
        import uvloop
    except ImportError:  # Not made for Windows.
        asyncio.run(main)
    else:
        uvloop.run(main)


class _Hashing:
    """A progress bar while a model's files are read, where somebody is watching."""

    def __init__(self) -> None:
        columns = (TextColumn("reading the model"), BarColumn(), DownloadColumn())
        self._bar = Progress(*columns, console=output.talk, transient=True)
        self._task = self._bar.add_task("", total=None, visible=False)

    def __enter__(self) -> "_Hashing":
        if output.talk.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def advance(self) -> Callable[[int, int], None]:
        def show(done_bytes: int, total_bytes: int) -> None:
            self._bar.update(self._task, completed=done_bytes, total=total_bytes, visible=done_bytes < total_bytes)

        return show
