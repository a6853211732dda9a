"""`python -m gateway.lanes.cloud.worker`: read one line of orders from stdin and serve them until stdin closes."""

import os
import sys

from gateway.lanes.cloud.worker.providers import Orders
from runtime.memory import limit_memory
from runtime.workers.lifecycle import orders_of


def main() -> None:
    orders = orders_of(Orders)
    limit_memory(orders.configuration.limits.memory_bytes_max)
    os.environ.update(orders.configuration.proxies)
    # Imported this late because it imports litellm, which takes seconds and reads the environment.
    from gateway.lanes.cloud.worker.server import serve

    serve(orders)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    # Threads of litellm's adapters may hang in a provider's socket, and the interpreter would wait for them.
    os._exit(0)
