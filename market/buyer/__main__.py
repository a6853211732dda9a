"""`python -m market.buyer`: read one line of orders from stdin and serve them until stdin closes."""

import sys

import msgspec

from market.buyer.orders import Orders
from market.buyer.server import serve
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
    limit_memory(orders.bounds.memory_bytes_max)
    serve(orders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
