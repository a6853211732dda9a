"""`python -m gateway.lanes.cloud.worker`: read one line of orders from stdin and serve them until stdin closes."""

import os
import sys

import msgspec

from gateway.lanes.cloud.worker.providers import Orders
from runtime.children import read_orders
from runtime.memory import limit_memory
from runtime.workers.logbook import note

EXIT_BAD_ORDERS = 2


def main() -> int:
    try:
        orders = msgspec.json.decode(read_orders(), type=Orders)
    except (msgspec.MsgspecError, ValueError, TimeoutError) as error:
        note("bad_orders", error=str(error))
        return EXIT_BAD_ORDERS
    limit_memory(orders.configuration.limits.memory_bytes_max)
    os.environ.update(orders.configuration.proxies)
    # Imported this late because it imports litellm, which takes seconds and reads the environment.
    from gateway.lanes.cloud.worker.server import serve

    serve(orders)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of litellm's adapters may hang in a provider's socket, and the interpreter would wait for them.
    os._exit(status)
