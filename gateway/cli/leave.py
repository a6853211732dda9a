"""`millrace leave`: remove this machine from its cluster."""

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import with_settings
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.settings import SettingsInvalid

_FORGOTTEN = ("identity", "controller.json", "kv")
_COPIES = "models"


def _show(facts: dict[str, Any]) -> None:
    output.say(f"this machine left the cluster; {facts['freed_bytes'] / 2**30:.2f} GiB freed")
    output.say("its certificate was deleted; `millrace machines remove NAME` removes it from the gateway's list")


@with_settings(_show)
def leave(
    settings: Settings,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep downloaded weights for another cluster.")
    ] = False,
) -> Any:
    """Leave the cluster that this machine joined. Example: millrace leave"""
    folder = DataFolder(settings.data_dir).node
    if not (folder / "identity").is_dir():
        output.fail(f"this machine has not joined a cluster: no certificate in {folder}")
    try:
        with only_node(folder):
            freed_bytes = _forget(folder, (*_FORGOTTEN, *(() if keep_models else (_COPIES,))))
    except SettingsInvalid as error:
        output.fail(f"{error}; stop it first with Ctrl-C", output.REFUSED)
    return {"left": True, "freed_bytes": freed_bytes}


@contextmanager
def only_node(folder: Path) -> Generator[None]:
    """Lock this machine's node folder for one process. Raises SettingsInvalid, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SettingsInvalid(f"`millrace join` is running on {folder.parent}") from None
    finally:
        os.close(descriptor)


def _forget(folder: Path, names: tuple[str, ...]) -> int:
    """Delete the files; return the bytes freed. Raises OSError."""
    freed_bytes = 0
    for name in names:
        path = folder / name
        if path.is_dir():
            freed_bytes += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
        elif path.exists():
            freed_bytes += path.stat().st_size
            path.unlink()
    return freed_bytes
