"""A stage process whose answers name another epoch than its pipeline's after a number of steps."""

import sys

from cluster import wire
from cluster.engine import stage_process
from cluster.engine.pipeline_links import PipelineEnd

_send = PipelineEnd.send
_HONEST_FRAMES = int(sys.argv.pop())


def lie(pipeline_end: PipelineEnd, message: wire.Message, payload: memoryview | bytes = b"") -> None:
    """As the true one, but for the epoch."""
    if pipeline_end.sent >= _HONEST_FRAMES and isinstance(message, wire.Step | wire.Sampled):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        message = type(message)(**fields | {"epoch": message.epoch + 1})
    _send(pipeline_end, message, payload)


if __name__ == "__main__":
    PipelineEnd.send = lie  # type: ignore[assignment, method-assign]
    stage_process.main(*sys.argv[1:])
