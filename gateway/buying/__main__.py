"""`python -m gateway.buying`: read one line of orders from stdin and serve them until stdin closes."""

import sys

import msgspec

from gateway.buying.orders import Orders
from gateway.buying.server import serve
from gateway.cloud_worker.lifecycle import first_line
from gateway.cloud_worker.logbook import note
from gateway.memory import limit_memory

EXIT_BAD_ORDERS = 2


def main() -> int:
    try:
        orders = msgspec.json.decode(first_line(), type=Orders)
    except (msgspec.MsgspecError, ValueError, TimeoutError) as error:
        note("bad_orders", error=str(error))
        return EXIT_BAD_ORDERS
    limit_memory(orders.bounds.memory_bytes_max)
    serve(orders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
