"""Everything that is wished for, and how often beside each other."""

from tests.accounting.economy.allocations import ALLOCATIONS
from tests.accounting.economy.credits import CREDITS
from tests.accounting.economy.market import MARKET
from tests.accounting.economy.requests import REQUESTS
from tests.accounting.economy.stripe import STRIPES
from tests.accounting.economy.world import Wish, again, tampered

MISCHIEF: dict[Wish, int] = {again: 7, tampered: 4}
WEIGHTS: dict[Wish, int] = CREDITS | REQUESTS | MARKET | ALLOCATIONS | STRIPES | MISCHIEF
WISHES = tuple(WEIGHTS)
