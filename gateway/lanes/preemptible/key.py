"""The key for guests: one for each gateway, replaced whenever the selling agent asks for it."""

import hashlib
import platform
from pathlib import Path

from gateway.identity.audit import Actor
from gateway.identity.caller import GUESTS
from gateway.identity.key_rows import KeyTerms
from gateway.identity.keys import IssuedKey, Keys
from gateway.lanes.preemptible.jobs import Guests
from gateway.settings import LaneName

DEPARTMENT = "market"

_LANES: tuple[LaneName, ...] = ("cluster", "pool")
# Last in any queue, should guests ever be put in one.
_LAST = 100
_ID_CHARS = 12


def issue_guest_key(keys: Keys, guests: Guests, data_dir: Path, by: Actor) -> IssuedKey:
    """Return a new key for guests; the one before is revoked.

    Writes to the database. Raises what `Keys.issue` does.
    """
    terms = KeyTerms(priority=_LAST)
    with guests.key_lock:  # the last key that is made must be the one in use
        issued = keys.issue(
            _name(data_dir), _LANES, user_id=GUESTS, department=DEPARTMENT, terms=terms, is_guest=True, by=by
        )
        guests.use_key(issued.row.key_id)
    return issued


def _name(data_dir: Path) -> str:
    """Gateways that share a database have one key each, and do not touch the others'."""
    gateway = f"{platform.node()}:{data_dir.absolute()}"
    return f"guests of {hashlib.sha256(gateway.encode()).hexdigest()[:_ID_CHARS]}"
