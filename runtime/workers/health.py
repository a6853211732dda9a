"""The report of a worker process about itself."""

from msgspec import Struct


class Health(Struct, frozen=True):
    """The worker's answer to GET /healthz, and, once, its first line on stdout."""

    pid: int
    requests: int
    in_flight: int
    rss_bytes: int
    age_s: float
    cpu_s: float
