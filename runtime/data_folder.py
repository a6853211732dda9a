"""The folder of everything kept on this machine: who may use it, and where things lie in it."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runtime.settings import SettingsInvalid

# Carries the running gateway's token, which only who may read the folder knows.
ADMIN_HEADER = "x-millrace-admin"

_OTHERS = 0o077


class FolderBusy(SettingsInvalid):
    """Another gateway runs on this folder."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Created on first use. Its files are closed to other users, even if the folder existed and was open."""

    path: Path

    def prepare(self) -> None:
        """Raises SettingsInvalid when the folder cannot be made or written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.path / "lock").touch(mode=0o600)
            for path in self._kept():
                _close_to_others(path)
        except OSError as error:
            raise SettingsInvalid(f"data_dir: {self.path} cannot be used: {error.strerror}") from None

    @property
    def open_to_others(self) -> bool:
        """Return whether other users may read a folder that we did not create."""
        return bool(self.path.stat().st_mode & _OTHERS)

    def _kept(self) -> Iterator[Path]:
        """The paths that the gateway creates in it. The owner protects settings and provider keys."""
        for suffix in ("", "-wal", "-shm"):
            yield self.database.with_name(self.database.name + suffix)
        yield from (self.cluster, self.nodes, self.node, self.spool, self.pool, self.ledger_key, self.market)
        yield self.ledger_checkpoint
        yield from (self._running, self.path / "lock")

    def lock(self) -> int:
        """Claim the folder for this process's life; returns the descriptor to keep. Raises FolderBusy."""
        descriptor = os.open(self.path / "lock", os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            running = self.read_running()
            who = f" (pid {running['pid']}, {running['base_url']})" if running else ""
            raise FolderBusy(
                f"another gateway runs on {self.path}{who}. Stop it, or choose another --data-dir."
            ) from None
        return descriptor

    @property
    def database(self) -> Path:
        """The database, if no PostgreSQL is given."""
        return self.path / "millrace.db"

    @property
    def dsn(self) -> str:
        return f"sqlite:///{self.database}"

    @property
    def ledger_key(self) -> Path:
        """The key that signs blocks of the ledger."""
        return self.path / "ledger.key"

    @property
    def ledger_checkpoint(self) -> Path:
        """The newest block of the ledger that this gateway has seen: `accounting.proofs.kept`."""
        return self.ledger_key.with_suffix(".checkpoint")

    @property
    def spool(self) -> Path:
        """Settlements that the ledger could not accept yet."""
        return self.path / "unbooked.jsonl"

    @property
    def cluster(self) -> Path:
        return self.path / "cluster"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    @property
    def node(self) -> Path:
        """The folder of this machine as a node of a cluster."""
        return self.path / "node"

    @property
    def pool(self) -> Path:
        """Pool backends that were added or drained while the gateway ran, with their keys."""
        return self.path / "pool.json"

    @property
    def market(self) -> Path:
        """This gateway's market identity, its records of other participants, and its debts and claims."""
        return self.path / "market"

    @property
    def _running(self) -> Path:
        return self.path / "running.json"

    def write_running(self, base_url: str, admin_token: str) -> None:
        """Write the gateway's address and a credential for this machine's command line."""
        facts = {"pid": os.getpid(), "base_url": base_url, "admin_token": admin_token}
        with os.fdopen(os.open(self._running, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(orjson.dumps(facts))

    def read_running(self) -> dict[str, Any] | None:
        try:
            facts: dict[str, Any] = orjson.loads(self._running.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        return facts

    def forget_running(self) -> None:
        self._running.unlink(missing_ok=True)


def _close_to_others(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if mode & _OTHERS:
            path.chmod(mode & ~_OTHERS)
    except FileNotFoundError:
        pass  # Not made yet, or gone again as a journal goes.
