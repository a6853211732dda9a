"""`millrace identity`: this gateway's identity on the market; rotating, revoking and recovering its key."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group, Report
from gateway.settings import Settings
from runtime.data_folder import DataFolder

if TYPE_CHECKING:
    from market.network.identity import OwnIdentity

app = Group("This gateway's identity on the market.")

_KEY_FILE_BYTES_MAX = 4096


@app.with_settings("create")
def create(
    settings: Settings,
    recovery_to: Annotated[
        Path | None, typer.Option(help="New file for the recovery key, e.g. on a USB drive; default: print it.")
    ] = None,
    *,
    as_json: bool,
) -> Report:
    """Create an identity with a recovery key, which is shown once and not stored.

    Example: millrace identity create
    """
    from market.protocol.identity.recovery_key import new_recovery_key, read_recovery_key

    own = _identity(settings, make=True)
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
    where = "printed above" if recovery_to is None else f"in {recovery_to}"

    def tell(_: Any) -> None:
        output.say(f"identity {own.id} created")
        output.say(f"the recovery key is {where} and stored nowhere else: keep it off this machine")

    return Report({"identity": own.id}, tell)


def _show_keys(facts: dict[str, Any]) -> None:
    output.table(("key", "standing"), [(each["key"], each["standing"]) for each in facts["keys"]])
    output.say(f"identity {facts['identity']}")
    if not facts["has_recovery_key"]:
        output.say(
            "No recovery key: a thief of the key can end this identity; `millrace identity create` makes one."
        )


@app.with_settings("show", _show_keys)
def show(settings: Settings) -> Any:
    """Show the identity and its keys, oldest first. Example: millrace identity show"""
    own = _identity(settings)
    known = own.lineage
    return {
        "identity": own.id,
        "has_recovery_key": bool(known.recovery_key),
        "keys": [{"key": key, "standing": known.standing(key)} for key in known.keys],
        "statements": [record.raw.decode() for record in own.statements],
    }


@app.with_settings("rotate")
def rotate(settings: Settings) -> Report:
    """Switch to a new key; promises signed with the old key stay valid. Example: millrace identity rotate"""
    own = _identity(settings)
    own.rotate()
    return _key_of(own, "now")


@app.with_settings("revoke", "{key:.16} is revoked")
def revoke(
    settings: Settings,
    key: Annotated[str, typer.Argument(help="Public key, as shown by `identity show`.")],
    reason: Annotated[str, typer.Option(help="Reason, which is published.")] = "",
    ends: Annotated[
        bool,
        typer.Option(
            "--ends-identity", help="Confirm revoking the current key; then only the recovery key can restore it."
        ),
    ] = False,
) -> Any:
    """Revoke a key and everything it has signed. Example: millrace identity revoke 5f0c...e1"""
    own = _identity(settings)
    if key == own.lineage.keys[-1] and not ends:
        output.fail("this is the current key: rotate first, or use --ends-identity", output.WRONG_USAGE)
    own.revoke(_public(key), reason)
    return {"revoked": key}


@app.with_settings("recover")
def recover(
    settings: Settings,
    recovery_from: Annotated[
        Path | None, typer.Option(help="File with the recovery key; default: prompt.")
    ] = None,
) -> Report:
    """Replace a lost or stolen key. Example: millrace identity recover"""
    from market.protocol.identity.recovery_key import read_recovery_key

    own = _identity(settings)
    own.recover(read_recovery_key(_text(recovery_from)))
    return _key_of(own, "now; the previous key is revoked")


def _key_of(own: "OwnIdentity", since: str) -> Report:
    key = own.signer.public_key.hex()
    return Report({"identity": own.id, "key": key}, f"{own.id[:16]} uses key {key} {since}")


def _identity(settings: Settings, *, make: bool = False) -> "OwnIdentity":
    """Return the identity of the data directory; end the command if there is none."""
    from market.network.identity import OwnIdentity

    folder = DataFolder(settings.data_dir)
    own = OwnIdentity(folder.market)
    if make:
        folder.prepare()
    elif not own.exists:
        output.fail(f"no identity in {folder.path}. Create one with `millrace identity create`")
    return own


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
