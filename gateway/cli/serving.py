"""`millrace up`: start a gateway, its local nodes and its cluster."""

import asyncio
import gc
import os
import socket
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import AsJson, DataDir, settings_from
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.memory import share_one_arena
from runtime.settings import SettingsInvalid

if TYPE_CHECKING:
    from gateway.identity.keys import Keys
    from gateway.serving import Running

SCRIPTS_KEY = "up --json"


def version(as_json: AsJson = False) -> None:  # noqa: ARG001 - the output is JSON in any case
    """Print the version. Example: millrace version"""
    output.data({"millrace": package_version("millrace")})


def up(
    model: Annotated[str | None, typer.Option(help="Model to serve: folder or Hugging Face ID.")] = None,
    name: Annotated[str | None, typer.Option(help="Name by which callers ask for the model.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes to start on this machine.", min=0)] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port, 0 for a free one.", min=0, max=65535)] = None,
    marketplace: Annotated[
        bool | None, typer.Option("--marketplace", help="Run as a marketplace.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Start the gateway. Example: millrace up --model demo/model --nodes 2"""
    settings = settings_from(
        data_dir,
        server={"host": host, "port": port},
        cluster={"model": model, "nodes": nodes, "served_name": name},
        marketplace={"enabled": marketplace},
    )
    # A start produces no garbage; collecting would take a tenth of the start.
    gc.disable()
    share_one_arena()
    # Importing the gateway takes most of a second; `millrace --help` should not wait for it.
    from cluster.errors import ModelError
    from gateway.cli.load_progress import reading_bar
    from gateway.database import DatabaseUnusable
    from gateway.serving import run
    from runtime.logs import configure_logs

    configure_logs(settings.log.style)
    folder = DataFolder(settings.data_dir)
    try:
        folder.prepare()
        warn_of_open_folder(folder)
        folder.lock()
        with reading_bar() as on_read:
            _event_loop(run(settings, folder, lambda running: _announce(running, as_json), on_read))
    except (SettingsInvalid, ModelError, DatabaseUnusable) as error:
        output.fail(str(error))
    finally:
        gc.enable()


def warn_of_open_folder(folder: DataFolder) -> None:
    """Warn about an open data directory: the gateway's own files are protected, other files may not be."""
    if folder.open_to_others:
        import structlog

        warning = structlog.get_logger(__name__).warning
        warning("data directory is open to other users", path=str(folder.path), fix=f"chmod 700 {folder.path}")


def _announce(running: "Running", as_json: bool) -> None:
    """Print the gateway's address with a valid key: the first key, or one made for scripts."""
    token = _announced_key(running.settings, running.directory.keys, as_json)
    if as_json:
        output.data(
            {
                "base_url": running.base_url,
                "api_key": token,
                "console_url": running.console_url,
                "password_url": _first_link(running),
                "pid": os.getpid(),
            }
        )
        return
    status, reason = running.controller.chat.status
    further = running.controller.further
    for label, fact in (
        ("base URL", running.base_url),
        ("API key", token or "created earlier; create another with `millrace key create NAME`"),
        ("console", f"{running.console_url} (read-only with this key)" if token else running.console_url),
        ("password", _first_password(running)),
        ("cluster", f"{status}: {reason}"),
        *((model.model_name or "", "{}: {}".format(*model.readiness.status)) for model, _ in further),
        ("more machines", "add each with `millrace token create`"),
    ):
        output.say((f"{label:<14}", "bold"), fact)


def _first_password(running: "Running") -> str:
    link = _first_link(running)
    if link is None:
        return "set earlier; reset with `millrace users password NAME`"
    return f"set one within an hour for admin access to the console: {link}"


def _first_link(running: "Running") -> str | None:
    """Return the first admin's password link while there is no password, else None."""
    from gateway.identity.passwords import address_of

    passwords, settings = running.directory.passwords, running.settings.identity
    if passwords.has_any():
        return None
    return address_of(passwords.new_first_link(), settings.public_url or running.base_url.removesuffix("/v1"))


def _announced_key(settings: Settings, keys: "Keys", as_json: bool) -> str | None:
    """Return the first start's key; with --json a key per start, which replaces the previous one."""
    from gateway.identity.key_queries import KeyFilter

    lanes = settings.policy.lanes
    if not keys.rows(limit=1):
        return keys.create("first key", lanes)
    if not as_json:
        return None
    name = _scripts_key(settings)
    earlier = [key for key in keys.rows(filters=KeyFilter(name=name)) if key.revoked_ns is None]
    token = keys.create(name, lanes)
    for key in earlier:
        keys.revoke(key.key_id)
    return token


def _scripts_key(settings: Settings) -> str:
    """Return the key's name. Gateways that share a database have one each, and do not touch the others'."""
    if settings.database.dsn is None:
        return SCRIPTS_KEY
    return f"{SCRIPTS_KEY}, {socket.gethostname()}:{settings.data_dir}"


def _event_loop(main: Any) -> None:
    try:
        import uvloop
    except ImportError:  # not available on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)
