"""The key for preemptible requests: one for each gateway, replaced whenever the selling agent asks for it."""

import hashlib
import platform
from pathlib import Path

from gateway.identity.audit import Actor
from gateway.identity.caller import MARKET_JOBS
from gateway.identity.key_rows import KeyTerms
from gateway.identity.keys import IssuedKey, Keys
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.settings import LaneName

DEPARTMENT = "market"

_LANES: tuple[LaneName, ...] = ("cluster", "pool")
# Last in any queue, should preemptible requests ever be put in one.
_LAST = 100
_ID_CHARS = 12


def issue_preemptible_key(keys: Keys, preemptible_jobs: PreemptibleJobs, data_dir: Path, by: Actor) -> IssuedKey:
    """Return a new key for preemptible requests; the one before is revoked.

    Writes to the database. Raises what `Keys.issue` does.
    """
    terms = KeyTerms(priority=_LAST)
    with preemptible_jobs.key_lock:  # the last key that is made must be the one in use
        issued = keys.issue(
            _name(data_dir),
            _LANES,
            user_id=MARKET_JOBS,
            department=DEPARTMENT,
            terms=terms,
            is_preemptible=True,
            by=by,
        )
        preemptible_jobs.use_key(issued.row.key_id)
    return issued


def _name(data_dir: Path) -> str:
    """Gateways that share a database have one key each, and do not touch the others'."""
    gateway = f"{platform.node()}:{data_dir.absolute()}"
    return f"preemptible requests of {hashlib.sha256(gateway.encode()).hexdigest()[:_ID_CHARS]}"
