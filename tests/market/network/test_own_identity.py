"""The identity in the data directory: survives a kill anywhere, and its owner gets it back after a theft."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from market.errors import IdentityInvalid
from market.network.identity import OwnIdentity
from market.protocol.identity.keys import identity_of
from market.protocol.identity.lineage import Identities
from market.protocol.listings.idle import IdleRule
from market.protocol.records.envelope import open_record
from tests.market.parties import NOW_MS, key_of

KILLED = 9
STEPS = ("prepared", "signed", "kept", "adopted")
# For each "folder doing step" a process that ends where it is told to, as nothing but a kill would.
CHILD = """
import os, sys
from pathlib import Path
from market.network.identity import OwnIdentity
from tests.market.network.test_own_identity import CHANGES
for asked in sys.argv[1:]:
    folder, doing, at = asked.rsplit(" ", 2)
    if not (child := os.fork()):
        CHANGES[doing](OwnIdentity(Path(folder), lambda step: os._exit(9) if step == at else None))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
CHANGES: dict[str, Callable[[OwnIdentity], object]] = {
    "begin": lambda own: own.begin(key_of("drawer").public_key),
    "rotate": lambda own: own.rotate(),
    "recover": lambda own: own.recover(key_of("drawer")),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Path, tuple[str, str]]]:
    """For each change and step the folder in which it was killed there, with id and key from before."""
    found = {}
    for doing in CHANGES:
        for step in STEPS:
            folder = tmp_path_factory.mktemp(f"{doing}-{step}")
            own = begun(folder) if doing != "begin" else None
            found[doing, step] = folder, (own.id, own.signer.fingerprint) if own else ("", "")
    asked = [f"{folder} {doing} {step}" for (doing, step), (folder, _) in found.items()]
    child = subprocess.run([sys.executable, "-c", CHILD, *asked], timeout=100, check=True, stdout=subprocess.PIPE)
    assert child.stdout.split() == [str(KILLED).encode()] * len(asked)
    return found


def begun(folder: Path) -> OwnIdentity:
    OwnIdentity(folder).begin(key_of("drawer").public_key)
    return OwnIdentity.open(folder)


def speaks(own: OwnIdentity) -> bool:
    """Whether others who know what it has said believe what it says now."""
    record = own.say("payment", "it", 0, IdleRule(), NOW_MS)
    statements = [open_record(each.raw) for each in own.statements]
    return Identities(statements).standing(own.id, open_record(record.raw).key) == "current"


def test_an_identity_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "market"
    own = OwnIdentity.open(folder)
    assert own.id == identity_of(own.signer.public_key)
    assert OwnIdentity.open(folder).id == own.id
    assert speaks(own)
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]} == {0o700, 0o600}


def test_every_process_that_has_it_open_sees_a_rotation(tmp_path: Path) -> None:
    old, new = OwnIdentity.open(tmp_path), OwnIdentity.open(tmp_path)
    before = old.signer.fingerprint
    new.rotate()
    assert old.signer.fingerprint == new.signer.fingerprint != before
    assert old.id == new.id
    assert old.lineage.keys == new.lineage.keys
    assert speaks(old)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("doing", CHANGES)
def test_a_kill_between_two_steps_leaves_the_old_state_or_the_new(
    killed: dict[tuple[str, str], tuple[Path, tuple[str, str]]], doing: str, step: str
) -> None:
    folder, (identity, key) = killed[doing, step]
    is_done = step in ("kept", "adopted")
    if doing == "recover" and step == "kept":
        # Of its two statements the first: the old key is revoked, and the recovery is asked for again.
        with pytest.raises(IdentityInvalid, match="revoked"):
            OwnIdentity.open(folder)
        is_done = False
    if not is_done:
        assert OwnIdentity(folder).exists == (doing != "begin")
        CHANGES[doing](OwnIdentity(folder))
    own = OwnIdentity.open(folder)
    assert own.lineage.recovery_key == key_of("drawer").public_key.hex()
    assert len(own.lineage.keys) == (1 if doing == "begin" else 2)
    assert own.id == identity or doing == "begin"
    assert own.signer.fingerprint != key
    assert speaks(own)
    assert not own.lineage.is_forked


def test_the_owner_gets_a_stolen_identity_back(tmp_path: Path) -> None:
    own = begun(tmp_path)
    own.rotate()
    stolen = own.signer
    with pytest.raises(IdentityInvalid, match="not the recovery key"):
        own.recover(key_of("thief"))
    own.recover(key_of("drawer"))
    assert speaks(own)
    assert own.lineage.standing(stolen.public_key.hex()) == "revoked"
    assert OwnIdentity.open(tmp_path).signer.fingerprint == own.signer.fingerprint


def test_a_lost_key_is_not_replaced_by_another_identity(tmp_path: Path) -> None:
    own = begun(tmp_path)
    identity = own.id
    (tmp_path / "identity.key").unlink()
    with pytest.raises(IdentityInvalid, match="is missing"):
        OwnIdentity.open(tmp_path)
    OwnIdentity(tmp_path).recover(key_of("drawer"))
    found = OwnIdentity.open(tmp_path)
    assert found.id == identity
    assert speaks(found)


def test_a_key_that_does_not_speak_is_not_used(tmp_path: Path) -> None:
    own = begun(tmp_path)
    old_key = (tmp_path / "identity.key").read_bytes()
    first = own.signer.public_key
    own.rotate()
    own.revoke(first, "it was on a stick")
    assert own.lineage.standing(first.hex()) == "revoked"
    with pytest.raises(IdentityInvalid, match="never had this key"):
        own.revoke(key_of("eve").public_key)
    (tmp_path / "identity.key").write_bytes(old_key)
    with pytest.raises(IdentityInvalid, match="is not the current key"):
        OwnIdentity.open(tmp_path)
