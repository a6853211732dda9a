"""A process's place in the pipeline: the one link it accepts from upstream and the one it writes downstream."""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cluster import wire
from cluster.errors import FrameInvalid, LinkLost, PeerRejected
from cluster.joining.handshake import check_terms
from cluster.net.transport import Frame, Link, Listener, Outbox, dial
from cluster.trust.identity import Identity, NodeId


@dataclass(frozen=True, slots=True)
class PipelineBroken:
    """A link of this epoch's pipeline is gone.

    With the cause "invalid", the link carried a frame that does not belong there.
    """

    epoch: int
    reason: str
    peer_id: NodeId
    cause: wire.Cause = "error"


@dataclass(frozen=True, slots=True)
class _Place:
    epoch: int
    upstream: NodeId
    payload_bytes_max: int
    terms: wire.Terms


class PipelineEnd:
    """The listener for all epochs; it belongs to one epoch's pipeline at a time.

    Frames and breaks go to `deliver`. Link threads call `deliver`, so it must be thread-safe, as a queue's put is.
    """

    def __init__(
        self,
        identity: Identity,
        host: str,
        kind: type[wire.Step | wire.Sampled],
        deliver: Callable[[Frame | PipelineBroken], None],
    ) -> None:
        self._identity = identity
        self._kind = kind
        self._deliver = deliver
        self._place: _Place | None = None
        self._inlet: Link | None = None
        self._outbox: Outbox | None = None
        self._changing = threading.Lock()
        # Counters of frames in this pipeline, which show where a frame got stuck.
        self.received = 0
        self.sent = 0
        self.host = host
        self._listener = Listener(host, identity, self._receive)
        self.port = self._listener.port

    @property
    def is_connected(self) -> bool:
        return self._outbox is not None

    def expect(
        self, epoch: int, upstream: NodeId, payload_bytes_max: int, terms: wire.Terms = wire.NO_TERMS
    ) -> None:
        """Take this place in the pipeline of `epoch`. From now on only `upstream` may link, on these terms."""
        self.leave()
        with self._changing:
            self.received = self.sent = 0
            self._place = _Place(epoch, upstream, payload_bytes_max, terms)

    def connect(self, epoch: int, downstream: wire.Address, terms: wire.Terms = wire.NO_TERMS) -> None:
        """Open the link downstream. Raise PeerRejected or LinkLost if that fails."""
        link = dial(downstream, self._identity)
        peer_id = downstream.node_id
        self._outbox = Outbox(link, lambda lost: self._deliver(PipelineBroken(epoch, str(lost), peer_id)))
        self._outbox.put(wire.PipelineHello(epoch, terms))

    def send(self, message: wire.Message, payload: memoryview | bytes = b"") -> None:
        """Queue a frame for downstream. Drop it if there is no link."""
        if self._outbox:
            self.sent += 1
            self._outbox.put(message, payload)

    def disconnect(self, node_ids: Collection[NodeId]) -> None:
        """End the links from and to these machines now. Any thread may call this."""
        with self._changing:
            links = [self._inlet, self._outbox.link if self._outbox else None]
        for link in links:
            if link and link.peer.node_id in node_ids:
                link.close()

    def leave(self) -> None:
        """Give up the place in the pipeline, and close both links."""
        with self._changing:
            self._place = None
            inlet, self._inlet = self._inlet, None
        if inlet:
            inlet.close()
        if self._outbox:
            self._outbox.close()
            self._outbox = None

    def close(self) -> None:
        self._listener.close()
        self.leave()

    def _receive(self, link: Link) -> None:
        """Serve one link from upstream, on its own thread, until it ends."""
        place = self._admit(link)
        link.settle()
        try:
            while True:
                frame = link.receive(place.payload_bytes_max)
                if not isinstance(frame.message, self._kind):
                    raise FrameInvalid(f"{type(frame.message).__name__} does not belong here")
                if frame.message.epoch != place.epoch:
                    raise FrameInvalid(_wrong_epoch(frame.message.epoch, place))
                self.received += 1
                self._deliver(frame)
        except LinkLost as error:
            self._deliver(PipelineBroken(place.epoch, str(error), place.upstream))
        except FrameInvalid as error:
            self._deliver(PipelineBroken(place.epoch, str(error), place.upstream, "invalid"))
            raise

    def _admit(self, link: Link) -> _Place:
        """Return the place that the link belongs to. Raise LinkLost, FrameInvalid or PeerRejected."""
        hello = link.receive_hello()
        with self._changing:
            place = self._place
            if place is None or not isinstance(hello, wire.PipelineHello):
                raise PeerRejected("link does not belong to the current epoch")
            if link.peer.node_id != place.upstream or link.peer.role != "node":
                raise PeerRejected(f"{link.peer.role} {link.peer.node_id} is not the upstream neighbour")
            if hello.epoch == place.epoch:
                if self._inlet:
                    raise PeerRejected("upstream already has a link")
                check_terms(place.terms, hello.terms)
                self._inlet = link
                return place
        if hello.epoch > place.epoch:
            # A link of a finished epoch may come late. A link of an epoch that was not ordered yet is forged.
            self._deliver(PipelineBroken(place.epoch, _wrong_epoch(hello.epoch, place), place.upstream, "invalid"))
        raise PeerRejected("link does not belong to the current epoch")


def _wrong_epoch(epoch: int, place: _Place) -> str:
    return f"the machine before it sent epoch {epoch} in the pipeline of epoch {place.epoch}"
