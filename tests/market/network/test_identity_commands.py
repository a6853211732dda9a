"""`millrace identity`: a recovery key that is shown once, and brings the identity back."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from market.errors import IdentityInvalid
from market.network.identity import OwnIdentity
from market.protocol.identity.recovery_key import new_recovery_key, read_recovery_key


def millrace(folder: Path, *words: str, said: str | None = None) -> Result:
    return CliRunner().invoke(app, ["identity", *words, "--data-dir", str(folder)], input=said)


def shown(folder: Path) -> tuple[str, list[tuple[str, str]]]:
    facts = json.loads(millrace(folder, "show", "--json").stdout)
    return facts["identity"], [(each["key"], each["standing"]) for each in facts["keys"]]


def test_an_identity_from_its_beginning_to_its_recovery(tmp_path: Path) -> None:
    assert millrace(tmp_path / "empty", "show").exit_code == 1
    stick = tmp_path / "stick"
    assert millrace(tmp_path, "create", "--recovery-to", str(stick)).exit_code == 0
    assert stat.S_IMODE(stick.stat().st_mode) == 0o600
    identity, [(first, _)] = shown(tmp_path)
    assert millrace(tmp_path, "create").exit_code == 1
    assert millrace(tmp_path, "rotate").exit_code == 0
    assert millrace(tmp_path, "revoke", first, "--reason", "old").exit_code == 0
    current = shown(tmp_path)[1][-1][0]
    refused = millrace(tmp_path, "revoke", current)
    assert refused.exit_code == 2
    assert "rotate first" in refused.stderr
    (tmp_path / "market" / "identity.key").unlink()
    assert millrace(tmp_path, "rotate").exit_code == 1
    assert millrace(tmp_path, "recover", said=new_recovery_key()).exit_code == 1
    assert millrace(tmp_path, "recover", "--recovery-from", str(stick)).exit_code == 0
    found, keys = shown(tmp_path)
    assert found == identity == OwnIdentity.open(tmp_path / "market").id
    assert [standing for _, standing in keys] == ["revoked", "revoked", "current"]
    secret = "".join(stick.read_text().split("-")).strip()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "market").iterdir())
    assert secret.encode() not in kept
    assert read_recovery_key(secret).sign(b"") not in kept


def test_a_recovery_key_is_printed_once_and_never_over_a_file(tmp_path: Path) -> None:
    there = tmp_path / "notes"
    there.write_text("mine")
    assert millrace(tmp_path / "data", "create", "--recovery-to", str(there)).exit_code == 1
    assert there.read_text() == "mine"
    assert not OwnIdentity(tmp_path / "data" / "market").exists
    created = millrace(tmp_path / "data", "create")
    key = created.stdout.strip()
    assert key not in millrace(tmp_path / "data", "show").output
    assert millrace(tmp_path / "data", "recover", said=f"  {key.lower()}\n").exit_code == 0


def test_slips_of_the_pen_are_noticed() -> None:
    key = new_recovery_key()
    assert read_recovery_key(key.replace("-", " ")).public_key == read_recovery_key(key).public_key
    for wrong in (
        "",
        key[:-1],
        key[1:],
        key.replace(key[0], "A" if key[0] != "A" else "B", 1),
        "é" * 56,
        "A" * 56,
    ):
        with pytest.raises(IdentityInvalid) as refused:
            read_recovery_key(wrong)
        assert not wrong or wrong not in str(refused.value)
