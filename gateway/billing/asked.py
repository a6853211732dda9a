"""Requests that are executed once per idempotency key: a repeated request gets the first answer.

The effect of a request has an id made from the key, so a process that dies between effect and answer does no harm.
The next request repeats the effect, finds it done, and answers again. Answers are kept for ANSWERS_KEPT_S; booked
entries keep their key in the ledger permanently.
"""

import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gateway.billing.tables import idempotent_request_table
from gateway.errors import KeyInUse
from runtime.errors import Conflict

HEADER = "Idempotency-Key"
ANSWERS_KEPT_S = 90 * 86_400
CLAIMED_S = 60
_NS = 10**9
_PURGE_EVERY = 256
_PURGED_MAX = 1_000
_column = idempotent_request_table.c


def id_of(what: str, whose: str, key: str) -> str:
    """Return the id of the object that a keyed request creates: a repeated request gets the same id."""
    return hashlib.sha256("\0".join((what, whose, key)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored answer: the status, and the exact body."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A key that this request must answer."""

    key_digest: bytes
    token: str


class AskedBefore:
    """Blocking; any thread may call it. If a gateway `is_alone`, claims of other processes are dead."""

    def __init__(
        self, write: Callable[[], Session], clock_ns: Callable[[], int] = time.time_ns, *, is_alone: bool = False
    ) -> None:
        self._write = write
        self._clock_ns = clock_ns
        self._is_alone = is_alone
        self._life = uuid.uuid4().hex
        self._begun = 0

    def begin(self, whose: str, key: str, request: bytes) -> Answer | Claim:
        """Return the stored answer, or a claim that `end` or `forget` resolves.

        Keys of different callers are independent. A claim that is never resolved expires.

        Raises:
            KeyInUse: the same request is being answered.
            Conflict: the key was used for another request.
        """
        digest = hashlib.sha256(f"{whose}\0{key}".encode()).digest()
        request_hash = hashlib.sha256(request).digest()
        self._begun += 1
        if self._begun % _PURGE_EVERY == 1:
            self._purge()
        try:
            return self._begin(digest, request_hash)
        except IntegrityError:
            raise _in_use(1) from None  # Another process got the same request at the same moment.

    def _begin(self, digest: bytes, request_hash: bytes) -> Answer | Claim:
        now_ns = self._clock_ns()
        token = f"{self._life}-{uuid.uuid4().hex}"
        claim = {"claim_token": token, "claimed_until_ns": now_ns + CLAIMED_S * _NS}
        with self._write() as session, session.begin():
            query = select(idempotent_request_table).where(_column.key_digest == digest).with_for_update()
            known = session.execute(query).one_or_none()
            if known is None:
                values = {"key_digest": digest, "request_hash": request_hash, "created_ns": now_ns, **claim}
                session.execute(idempotent_request_table.insert().values(values))
            elif known.request_hash != request_hash:
                raise Conflict(
                    "This Idempotency-Key was used for another request: send a new one with each new request.",
                    param=HEADER,
                    code="idempotency_key_reused",
                )
            elif known.status is not None:
                return Answer(known.status, known.response)
            elif known.claimed_until_ns > now_ns and self._may_live(known.claim_token):
                raise _in_use(-(-(known.claimed_until_ns - now_ns) // _NS))
            else:
                session.execute(update(idempotent_request_table).where(_column.key_digest == digest).values(claim))
        return Claim(digest, token)

    def _may_live(self, token: str) -> bool:
        return not self._is_alone or token.startswith(self._life)

    def end(self, claim: Claim, answer: Answer) -> None:
        """Store the answer; repeated requests get it from now on."""
        with self._write() as session, session.begin():
            values = {"status": answer.status, "response": answer.body}
            session.execute(update(idempotent_request_table).where(*_of(claim)).values(values))

    def forget(self, claim: Claim) -> None:
        """Release the key for reuse: nothing was done, or the result is unknown."""
        with self._write() as session, session.begin():
            session.execute(delete(idempotent_request_table).where(*_of(claim)))

    def _purge(self) -> None:
        old = select(_column.key_digest).where(_column.created_ns < self._clock_ns() - ANSWERS_KEPT_S * _NS)
        with self._write() as session, session.begin():
            session.execute(delete(idempotent_request_table).where(_column.key_digest.in_(old.limit(_PURGED_MAX))))


def _of(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return (_column.key_digest == claim.key_digest, _column.claim_token == claim.token, _column.status.is_(None))


def _in_use(retry_after_s: int) -> KeyInUse:
    return KeyInUse("A request with this Idempotency-Key is being answered; try again shortly.", retry_after_s)
