"""A stage process whose answers name another epoch than its ring's once it has been asked so often."""

import sys

from cluster import wire
from cluster.engine import stage_process
from cluster.engine.pipeline_links import RingEnd

_send = RingEnd.send
_HONEST_FRAMES = int(sys.argv.pop())


def lie(ring_end: RingEnd, message: wire.Message, payload: memoryview | bytes = b"") -> None:
    """As the true one, but for the epoch."""
    if ring_end.sent >= _HONEST_FRAMES and isinstance(message, wire.Step | wire.Sampled):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        message = type(message)(**fields | {"epoch": message.epoch + 1})
    _send(ring_end, message, payload)


if __name__ == "__main__":
    RingEnd.send = lie  # type: ignore[assignment, method-assign]
    stage_process.main(*sys.argv[1:])
