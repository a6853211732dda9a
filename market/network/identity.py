"""This gateway's identity on the market: its key and its statements about its keys, in a folder of its own.

Every step replaces one file atomically. After a crash, the next process finds the old state or the new one and
finishes what was signed. What was signed is stored before it takes effect.

`prepare_successor` creates the next key beside the current one. The rotation is signed and stored. Only then does
`adopt_successor` replace the current key. After a crash in between, both keys and the rotation exist.
"""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from accounting.proofs.signing_key import KeyFile, Signer
from market.errors import IdentityInvalid
from market.network.statements_file import StatementsFile
from market.protocol.identity.keys import identity_of
from market.protocol.identity.lineage import Identities, Lineage
from market.protocol.identity.statements import ROTATIONS_MAX, found, revoke, rotate
from market.protocol.records.envelope import Kind, Record, Saying, sign
from runtime.times import now_ms

_LOCK_S = 5.0
_LOCK_PAUSE_S = 0.02

Failpoint = Literal["prepared", "signed", "kept", "adopted"]
"""Points between the steps of a founding, a rotation or a recovery, for tests that stop there."""


def _no_failpoint(_: Failpoint) -> None:
    return None


def successor_path(path: Path) -> Path:
    return path.with_name(path.name + ".next")


def prepare_successor(path: Path) -> Signer:
    """Return the key that will follow this file's. Create it (mode 0600) if it does not exist.

    Raises:
        SigningKeyUnusable: the file cannot be read, written or understood.
    """
    return KeyFile(successor_path(path)).signer()


def adopt_successor(path: Path, new_key: bytes) -> bool:
    """Replace this file with the prepared key if it is the one that the rotation names. Raises OSError."""
    following = successor_path(path)
    if not following.exists() or KeyFile(following).signer().public_key != new_key:
        return False
    following.replace(path)
    return True


class OwnIdentity:
    """The identity in a folder. Several processes may have it open: they see each other's rotations at once.

    Raises:
        accounting.proofs.signing_key.SigningKeyUnusable: by any method, if a key cannot be read.
        IdentityInvalid: by any method, if the files do not belong to one identity.
        OSError: by any method.
    """

    def __init__(self, folder: Path, failpoint: Callable[[Failpoint], None] = _no_failpoint) -> None:
        self._folder = folder
        self._key = KeyFile(folder / "identity.key")
        self._statements = StatementsFile(folder / "statements.jsonl")
        self._failpoint = failpoint

    @classmethod
    def open(cls, folder: Path) -> "OwnIdentity":
        """Return the identity of this folder; create one without a recovery key if there is none.

        Raises:
            IdentityInvalid: the key is missing or no longer valid.
        """
        own = cls(folder)
        with own._alone():
            if not own.exists:
                own._key.signer()
            own._finish()
        own._check_speaks()
        return own

    @property
    def exists(self) -> bool:
        """Return whether there is an identity, even if its key is lost."""
        return self._key.path.exists() or bool(self.statements)

    @property
    def id(self) -> str:
        """Return the id, 64 hex digits: the hash of the keys that it began with."""
        return self.statements[0].issuer if self.statements else identity_of(self.signer.public_key)

    @property
    def signer(self) -> Signer:
        """Return the current key.

        Raises:
            IdentityInvalid: the key file is missing.
        """
        if not self._key.path.exists():
            raise IdentityInvalid(f"{self._key.path} is missing. Make another with `millrace identity recover`.")
        return self._key.signer()

    @property
    def statements(self) -> tuple[Record, ...]:
        """Return founding, rotations and revocations, in the order they were made."""
        return self._statements.records()

    @property
    def lineage(self) -> Lineage:
        """Return its keys, by its own statements only."""
        known = Identities(self.statements).lineage(self.id)
        return known if known.keys else Lineage(self.id, (self.signer.public_key.hex(),))

    def say(
        self, kind: Kind, name: str, revision: int, body: Struct, made_ms: int, expires_ms: int | None = None
    ) -> Record:
        """Sign a record in the name of this identity.

        Raises:
            RecordInvalid: others would reject such a record.
        """
        return sign(Saying(kind, self.id, name, revision, made_ms, body, expires_ms), self.signer)

    def begin(self, recovery_key: bytes) -> None:
        """Make an identity with this recovery key, which its owner must have stored safely by now.

        Raises:
            IdentityInvalid: there is an identity already.
        """
        with self._alone():
            if self.exists:
                raise IdentityInvalid("there is an identity already, and its recovery key cannot be changed")
            root = prepare_successor(self._key.path)
            self._failpoint("prepared")
            self._keep(found(root, recovery_key, now_ms()))
            self._finish()

    def rotate(self) -> Record:
        """Make a new key current. What the previous key has signed still counts.

        Raises:
            IdentityInvalid: the current key is not valid any more, or there were too many rotations.
        """
        with self._alone():
            self._finish()
            self._check_speaks()
            return self._turn(self.signer)

    def recover(self, recovery: Signer) -> Record:
        """Make a new key current with the recovery key, and revoke the one that was lost or stolen.

        Raises:
            IdentityInvalid: this is not the identity's recovery key, or there were too many rotations.
        """
        with self._alone():
            self._finish()
            known = self.lineage
            if known.recovery_key != recovery.public_key.hex():
                raise IdentityInvalid("this is not the recovery key of this identity")
            # A thief of the key may also have taken the successor prepared beside it.
            successor_path(self._key.path).unlink(missing_ok=True)
            if known.keys[-1] not in known.revoked:
                self._keep(revoke(self.id, bytes.fromhex(known.keys[-1]), recovery, now_ms(), "recovered"))
            return self._turn(recovery)

    def revoke(self, key: bytes, reason: str = "") -> Record:
        """Make a key worthless, with all that it has signed.

        Without a recovery key, revoking the current one is final.

        Raises:
            IdentityInvalid: the identity never had this key, or the current one is not valid any more.
        """
        with self._alone():
            self._finish()
            self._check_speaks()
            if key.hex() not in self.lineage.keys:
                raise IdentityInvalid("this identity never had this key")
            record = revoke(self.id, key, self.signer, now_ms(), reason)
            self._keep(record)
            return record

    def _turn(self, by: Signer) -> Record:
        keys = self.lineage.keys
        if len(keys) > ROTATIONS_MAX:
            raise IdentityInvalid(f"an identity has at most {ROTATIONS_MAX} rotations. Create another one.")
        new = prepare_successor(self._key.path)
        self._failpoint("prepared")
        record = rotate(self.id, len(keys), bytes.fromhex(keys[-1]), new, by, now_ms())
        self._keep(record)
        self._finish()
        return record

    def _keep(self, record: Record) -> None:
        self._failpoint("signed")
        self._statements.add(record)
        self._failpoint("kept")

    def _finish(self) -> None:
        """Adopt the key that was made and announced before a crash, if there is one."""
        if self.statements and successor_path(self._key.path).exists():
            adopt_successor(self._key.path, bytes.fromhex(self.lineage.keys[-1]))
            self._failpoint("adopted")

    def _check_speaks(self) -> None:
        known = self.lineage
        found_key = self.signer.public_key.hex()
        if found_key != known.keys[-1]:
            raise IdentityInvalid(f"{self._key.path} is not the current key of {known.identity[:16]}")
        if known.standing(found_key) != "current":
            raise IdentityInvalid("this identity's key is revoked. Run `millrace identity recover` for another.")

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Hold the lock with which processes change the identity one at a time."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "identity.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor)
            yield
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise IdentityInvalid("another process is changing this identity. Try again.") from None
            time.sleep(_LOCK_PAUSE_S)
        else:
            return
