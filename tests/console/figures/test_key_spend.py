"""What keys were charged this month, as the Keys page shows it."""

import time
from typing import Any

from accounting.rules import local
from gateway.console.pages.keys.figures import key_lines
from gateway.identity.keys import Keys
from gateway.limits.windows import window
from runtime.database import open_engine, read_sessions, write_sessions
from tests.accounting.ledgers import LedgerService, usage


def test_a_line_has_what_its_key_was_charged_this_month(dsn: str) -> None:
    engine = open_engine(dsn)
    read = read_sessions(engine)
    keys = Keys(b"secret", read, write_sessions(engine))
    busy, idle = (keys.issue(name, ("pool",)).row for name in ("busy", "idle"))
    now_ns, month_ns = time.time_ns(), window("month", time.time())[0] * 10**9
    with LedgerService(engine) as ledger:
        for number, (began_ns, charge_nano) in enumerate(((now_ns, 5), (month_ns, 7), (month_ns - 1, 100))):
            row: dict[str, Any] = {"user_id": "owner", "key_id": busy.key_id, "charge_nano": charge_nano}
            ledger.post(local.local_use(usage(f"r{number}", started_ns=began_ns, **row)))
    with read() as session:
        lines = key_lines(session, [busy, idle], {"owner": "The owner"})
    engine.dispose()
    assert [(line.row.name, line.owner, line.spent_nano) for line in lines] == [
        ("busy", "The owner", 12),
        ("idle", "The owner", 0),
    ]
