"""`python -m gateway.cloud_worker`: read one line of orders from stdin and serve them until stdin closes."""

import os
import resource
import select
import sys
import time
from contextlib import suppress

import msgspec

from gateway.cloud_worker.logbook import note
from gateway.cloud_worker.providers import Orders

ORDERS_BYTES_MAX = 4 * 1024 * 1024
ORDERS_S = 30.0
EXIT_BAD_ORDERS = 2


def main() -> int:
    try:
        orders = msgspec.json.decode(_first_line(), type=Orders)
    except (msgspec.MsgspecError, ValueError, TimeoutError) as error:
        note("bad_orders", error=str(error))
        return EXIT_BAD_ORDERS
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the keys
    _limit_memory(orders.configuration.limits.memory_bytes_max)
    os.environ.update(orders.configuration.proxies)
    # Imported this late because litellm comes with it, which takes seconds and reads the environment.
    from gateway.cloud_worker.server import serve

    serve(orders)
    return 0


def _limit_memory(bytes_max: int) -> None:
    """What asks for more fails alone, with a MemoryError, before the machine suffers."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        bytes_max = min(bytes_max, hard)
    with suppress(ValueError, OSError):  # not every system knows this limit
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))


def _first_line() -> bytes:
    """Unbuffered, so that what follows on stdin, its end, is left for the server to see."""
    deadline, line = time.monotonic() + ORDERS_S, b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([0], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            raise TimeoutError(f"no orders within {ORDERS_S:g} s")
        part = os.read(0, 65_536)
        line += part
        if not part or len(line) > ORDERS_BYTES_MAX:
            raise ValueError("orders end without a line feed" if not part else "orders are too long")
    return line


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of litellm's adapters may hang in a provider's socket, and the interpreter would wait for them.
    os._exit(status)
