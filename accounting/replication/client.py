"""Send groups of events to the leader through the outbox, one after the other, and wait for each reply."""

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from accounting.ledger.postings import Posting
from accounting.replication.errors import LeaderAway, MessageInvalid
from accounting.replication.messages import Reply, pack_events, unpack_answers
from accounting.replication.outbox import ROWS_MAX, Outbox

LOOK_S = 0.25
"""Longest time between two looks at an unanswered group, in seconds. Notifications only shorten it."""


class LeaderClient:
    """Book groups at whichever gateway leads. Belongs to the poster's thread."""

    def __init__(self, open_session: Callable[[], Session], gateway: str) -> None:
        self._outbox = Outbox(open_session, gateway, gateway)

    def ask(self, postings: Sequence[Posting], may_wait: Callable[[], bool]) -> list[Reply]:
        """Return the leader's answer to each event, in order.

        Args:
            postings: the events of a group.
            may_wait: tells at each look whether to wait on.

        Raises:
            LeaderAway: no answer came. Each event may have been booked; the same keys may be sent again.
            MessageInvalid: the leader answered fewer or more events than it was sent, or could not read them.
            sqlalchemy.exc.SQLAlchemyError: the database failed, with the same consequence.
        """
        replies = (unpack_answers(self._reply(events, may_wait)) for events in pack_events(postings))
        answers = [answer for reply in replies for answer in reply]
        if len(answers) != len(postings):
            raise MessageInvalid(
                f"the leader of the ledger sent {len(answers)} answers for {len(postings)} events"
            )
        return answers

    def close(self) -> None:
        self._outbox.close()

    def _reply(self, events: bytes, may_wait: Callable[[], bool]) -> bytes:
        sent_ns = self._outbox.send(events)
        if sent_ns is None:
            raise LeaderAway(f"{ROWS_MAX} groups of entries wait for the leader of the ledger already")
        while True:
            self._outbox.wait(LOOK_S)
            try:
                reply = self._outbox.receive(sent_ns)
            except KeyError:
                raise LeaderAway("the outbox of the ledger was emptied") from None
            if reply is not None:
                return reply
            if not may_wait():
                self._outbox.withdraw(sent_ns)
                raise LeaderAway("the leader of the ledger has not answered")
