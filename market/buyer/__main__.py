"""`python -m market.buyer`: read one line of orders from stdin and serve them until stdin closes."""

from market.buyer.orders import Orders
from market.buyer.server import serve
from runtime.memory import limit_memory
from runtime.workers.lifecycle import orders_of

if __name__ == "__main__":
    orders = orders_of(Orders)
    limit_memory(orders.bounds.memory_bytes_max)
    serve(orders)
