"""`millrace identity`: who this gateway is on the market, and what to do when its key gets old, lost or stolen."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from gateway.market.identity import OwnIdentity

app = typer.Typer(help="Who this gateway is on the market.", no_args_is_help=True)

_KEY_FILE_BYTES_MAX = 4096


@app.command("create")
def create(
    recovery_to: Annotated[
        Path | None, typer.Option(help="A new file for the recovery key, on a stick; else it is printed.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Begin an identity with a recovery key, shown once and kept nowhere. Example: millrace identity create"""
    from market.identity.recovery_key import new_recovery_key, read_recovery_key

    with _identity(data_dir, make=True) as own:
        if own.exists:
            output.fail("there is an identity already, and its id allows for no other recovery key")
        text = new_recovery_key()
        # First where it is safe, then in use: the other way round a crash would leave an identity without it.
        if recovery_to is not None:
            _write_new(recovery_to, text)
        elif as_json:
            output.data({"recovery_key": text})
        else:
            typer.echo(text)
        own.begin(read_recovery_key(text).public_key)
        if as_json:
            output.data({"identity": own.id})
            return
        where = "printed above" if recovery_to is None else f"in {recovery_to}"
        output.say(f"this gateway is {own.id} on the market")
        output.say(f"its recovery key is {where} and nowhere else: keep it apart from this machine")


@app.command("show")
def show(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the identity and its keys, oldest first. Example: millrace identity show"""
    with _identity(data_dir) as own:
        known = own.lineage
        if as_json:
            keys = [{"key": key, "standing": known.standing(key)} for key in known.keys]
            statements = [record.raw.decode() for record in own.statements]
            facts = {"identity": own.id, "has_recovery_key": bool(known.recovery_key), "keys": keys}
            output.data(facts | {"statements": statements})
            return
        output.table(("key", "standing"), [(key, known.standing(key)) for key in known.keys], as_json=False)
        output.say(f"identity {own.id}")
        if not known.recovery_key:
            output.say(
                "It has no recovery key: who steals its key can end it. `millrace identity create` makes one."
            )


@app.command("rotate")
def rotate(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Speak with a new key from now on; what the old one promised counts. Example: millrace identity rotate"""
    with _identity(data_dir) as own:
        own.rotate()
        _tell_key(own, "from now on", as_json=as_json)


@app.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(help="The public key, as `identity show` writes it.")],
    reason: Annotated[str, typer.Option(help="Told to everybody.")] = "",
    ends: Annotated[
        bool, typer.Option("--ends-identity", help="Yes, the current key; only the recovery key helps then.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key worthless, with all that it has signed. Example: millrace identity revoke 5f0c...e1"""
    with _identity(data_dir) as own:
        if key == own.lineage.keys[-1] and not ends:
            output.fail("this is the key that speaks: rotate first, or say --ends-identity", output.WRONG_USAGE)
        own.revoke(_public(key), reason)
        output.tell({"revoked": key}, f"{key[:16]} is worth nothing from now on", as_json=as_json)


@app.command("recover")
def recover(
    recovery_from: Annotated[
        Path | None, typer.Option(help="The file with the recovery key; else it is asked for.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Put a new key in the place of one that was lost or stolen. Example: millrace identity recover"""
    from market.identity.recovery_key import read_recovery_key

    with _identity(data_dir) as own:
        own.recover(read_recovery_key(_text(recovery_from)))
        _tell_key(own, "from now on; the key before is revoked", as_json=as_json)


def _tell_key(own: "OwnIdentity", since: str, *, as_json: bool) -> None:
    key = own.signer.public_key.hex()
    output.tell({"identity": own.id, "key": key}, f"{own.id[:16]} speaks with {key} {since}", as_json=as_json)


@contextmanager
def _identity(data_dir: Path | None, *, make: bool = False) -> Generator["OwnIdentity"]:
    """The identity of the data folder; ends the command with one line when it refuses."""
    from accounting.proofs.signing_key import SigningKeyUnusable
    from gateway.data_folder import DataFolder
    from gateway.market.identity import OwnIdentity
    from gateway.settings import SettingsInvalid
    from market.errors import MarketError

    folder = DataFolder(settings_from(data_dir).data_dir)
    own = OwnIdentity(folder.path / "market")
    try:
        if make:
            folder.prepare()
        elif not own.exists:
            output.fail(f"there is no identity in {folder.path}; `millrace identity create` makes one")
        yield own
    except (MarketError, SigningKeyUnusable, SettingsInvalid) as error:
        output.fail(str(error))
    except OSError as error:
        output.fail(f"{error.filename or folder.path}: {error.strerror}")


def _write_new(path: Path, text: str) -> None:
    """Never over something that is there. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _text(path: Path | None) -> str:
    if path is None:
        if sys.stdin.isatty():
            return str(typer.prompt("recovery key", hide_input=True))
        return sys.stdin.readline(_KEY_FILE_BYTES_MAX)
    with path.open(errors="replace") as file:
        return file.read(_KEY_FILE_BYTES_MAX)


def _public(key: str) -> bytes:
    try:
        return bytes.fromhex(key)
    except ValueError:
        output.fail("a public key has 64 hex digits, as `millrace identity show` writes it", output.WRONG_USAGE)
