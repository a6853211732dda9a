"""Many buy at once from one payer who cannot pay for all: what there is is spent to the last nano, and no more."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine

from accounting.errors import InsufficientCredit
from accounting.ledger.poster import Poster
from accounting.replication.shared import SharedLedger
from accounting.rules import market
from accounting.rules.parts import HeldPart, Share
from runtime.database import write_sessions
from tests.accounting.ledgers import ANSWER_S, LedgerService

CLIENTS = 64
TRIES = 10
CHARGE_NANO = 1_000
AFFORDABLE = 300
FEE_BPS = 500
PAYER = "user:ann:paid"


@contextmanager
def writers(engine: Engine) -> Iterator[list[Poster]]:
    """On PostgreSQL those of two gateways, one of which leads."""
    write = write_sessions(engine)
    with ExitStack() as stack:
        posters = []
        for _ in range(2 if engine.dialect.name == "postgresql" else 1):
            shared = SharedLedger(write) if engine.dialect.name == "postgresql" else None
            poster = Poster(write, booking=shared)
            if shared:
                shared.start(poster.submit)
                stack.callback(shared.stop)
            poster.start()
            stack.callback(poster.stop, ANSWER_S)
            posters.append(poster)
        yield posters


def _buy(poster: Poster, name: str, seller: str) -> str:
    try:
        hold = market.hold(name, [Share(PAYER, CHARGE_NANO)], 2**62)
        (pending_seq,) = poster.submit(hold).result(ANSWER_S).transfer_seqs
    except InsufficientCredit:
        return "refused"
    order = market.PurchaseHold(name, (HeldPart(PAYER, CHARGE_NANO, pending_seq),))
    poster.submit(market.capture(order, market.SellerBill(seller, CHARGE_NANO, FEE_BPS))).result(ANSWER_S)
    return "bought"


def test_64_clients_spend_what_there_is_and_no_more(engine: Engine) -> None:
    outcomes: Counter[str] = Counter()
    counting = threading.Lock()
    with LedgerService(engine) as ledger:
        ledger.credit("ann", AFFORDABLE * CHARGE_NANO)
    with writers(engine) as posters:

        def buy(client: int) -> None:
            poster = posters[client % len(posters)]
            for number in range(TRIES):
                outcome = _buy(poster, f"r{client}-{number}", f"s{client % 8}")
                with counting:
                    outcomes[outcome] += 1

        threads = [threading.Thread(target=buy, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == {"bought": AFFORDABLE, "refused": CLIENTS * TRIES - AFFORDABLE}
    with LedgerService(engine) as ledger:
        assert ledger.balance(PAYER).available_nano == 0
        assert ledger.balance("income:market_fee").available_nano == AFFORDABLE * CHARGE_NANO * FEE_BPS // 10_000
        assert ledger.findings() == []
