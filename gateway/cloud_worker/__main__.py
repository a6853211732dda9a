"""`python -m gateway.cloud_worker`: read one line of orders from stdin and serve them until stdin closes."""

import os
import sys

import msgspec

from gateway.cloud_worker.lifecycle import first_line
from gateway.cloud_worker.logbook import note
from gateway.cloud_worker.providers import Orders
from gateway.memory import limit_memory

EXIT_BAD_ORDERS = 2


def main() -> int:
    try:
        orders = msgspec.json.decode(first_line(), type=Orders)
    except (msgspec.MsgspecError, ValueError, TimeoutError) as error:
        note("bad_orders", error=str(error))
        return EXIT_BAD_ORDERS
    limit_memory(orders.configuration.limits.memory_bytes_max)
    os.environ.update(orders.configuration.proxies)
    # Imported this late because it imports litellm, which takes seconds and reads the environment.
    from gateway.cloud_worker.server import serve

    serve(orders)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of litellm's adapters may hang in a provider's socket, and the interpreter would wait for them.
    os._exit(status)
