"""`millrace identity`: this gateway's identity on the market; rotating, revoking and recovering its key."""

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
    from market.network.identity import OwnIdentity

app = typer.Typer(help="This gateway's identity on the market.", no_args_is_help=True)

_KEY_FILE_BYTES_MAX = 4096


@app.command("create")
def create(
    recovery_to: Annotated[
        Path | None, typer.Option(help="New file for the recovery key, e.g. on a USB drive; default: print it.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create an identity with a recovery key, which is shown once and not stored.

    Example: millrace identity create
    """
    from market.protocol.identity.recovery_key import new_recovery_key, read_recovery_key

    with _identity(data_dir, make=True) as own:
        if own.exists:
            output.fail("an identity already exists, and its recovery key cannot be changed")
        text = new_recovery_key()
        # Store the recovery key before using it: in the other order a crash would leave an identity without it.
        if recovery_to is not None:
            _write_new(recovery_to, text)
        elif as_json:
            output.data({"recovery_key": text})
        else:
            typer.echo(text)
        own.begin(read_recovery_key(text).public_key)
        output.only_data({"identity": own.id}, as_json=as_json)
        where = "printed above" if recovery_to is None else f"in {recovery_to}"
        output.say(f"identity {own.id} created")
        output.say(f"the recovery key is {where} and stored nowhere else: keep it off this machine")


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
                "No recovery key: a thief of the key can end this identity; `millrace identity create` makes one."
            )


@app.command("rotate")
def rotate(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Switch to a new key; promises signed with the old key stay valid. Example: millrace identity rotate"""
    with _identity(data_dir) as own:
        own.rotate()
        _tell_key(own, "now", as_json=as_json)


@app.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(help="Public key, as shown by `identity show`.")],
    reason: Annotated[str, typer.Option(help="Reason, which is published.")] = "",
    ends: Annotated[
        bool,
        typer.Option(
            "--ends-identity", help="Confirm revoking the current key; then only the recovery key can restore it."
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key and everything it has signed. Example: millrace identity revoke 5f0c...e1"""
    with _identity(data_dir) as own:
        if key == own.lineage.keys[-1] and not ends:
            output.fail("this is the current key: rotate first, or use --ends-identity", output.WRONG_USAGE)
        own.revoke(_public(key), reason)
        output.tell({"revoked": key}, f"{key[:16]} is revoked", as_json=as_json)


@app.command("recover")
def recover(
    recovery_from: Annotated[
        Path | None, typer.Option(help="File with the recovery key; default: prompt.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replace a lost or stolen key. Example: millrace identity recover"""
    from market.protocol.identity.recovery_key import read_recovery_key

    with _identity(data_dir) as own:
        own.recover(read_recovery_key(_text(recovery_from)))
        _tell_key(own, "now; the previous key is revoked", as_json=as_json)


def _tell_key(own: "OwnIdentity", since: str, *, as_json: bool) -> None:
    key = own.signer.public_key.hex()
    output.tell({"identity": own.id, "key": key}, f"{own.id[:16]} uses key {key} {since}", as_json=as_json)


@contextmanager
def _identity(data_dir: Path | None, *, make: bool = False) -> Generator["OwnIdentity"]:
    """Yield the identity of the data directory; end the command with one line on an error."""
    from accounting.proofs.signing_key import SigningKeyUnusable
    from market.errors import MarketError
    from market.network.identity import OwnIdentity
    from runtime.data_folder import DataFolder
    from runtime.settings import SettingsInvalid

    folder = DataFolder(settings_from(data_dir).data_dir)
    own = OwnIdentity(folder.path / "market")
    try:
        if make:
            folder.prepare()
        elif not own.exists:
            output.fail(f"no identity in {folder.path}. Create one with `millrace identity create`")
        yield own
    except (MarketError, SigningKeyUnusable, SettingsInvalid) as error:
        output.fail(str(error))
    except OSError as error:
        output.fail(f"{error.filename or folder.path}: {error.strerror}")


def _write_new(path: Path, text: str) -> None:
    """Write a new file; never overwrite an existing one. Raises OSError."""
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
        output.fail("a public key has 64 hex digits; see `millrace identity show`", output.WRONG_USAGE)
