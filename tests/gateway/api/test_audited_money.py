"""What operators give is in the audit log, whatever happened between the ledger and the log."""

import time

import pytest

from accounting.spending.credit_grants import CreditGrant
from gateway.billing.asked import id_of
from gateway.identity.audit import Filter
from runtime.times import at
from tests.gateway.api.conftest import Serve
from tests.gateway.api.shops import USD, post

pytestmark = pytest.mark.anyio


async def test_what_a_process_booked_before_it_died_is_audited_when_it_is_asked_for_again(
    serve: Serve,
) -> None:
    async with serve() as served:
        ledger = served.services.ledger
        served.services.directory.users.add("ann")
        actor, expires_ns = "machine", (int(time.time()) + 86_400) * 10**9
        await ledger.credit(id_of("credit", actor, "k"), "ann", 5 * USD, "paid")
        await ledger.grant(
            CreditGrant(id_of("promo", actor, "welcome"), "ann", USD, expires_ns, "cloud", "welcome")
        )
        async with served.machine as machine:
            given = await post(machine, "/credits", "k", user="ann", amount="5.00", reason="paid")
            grant = {"user": "ann", "amount": "1.00", "expires": at(expires_ns), "reason": "welcome"}
            granted = await post(machine, "/credits/promo", "welcome", **grant)
            assert (given.status_code, granted.status_code) == (200, 200), granted.text
        entries = served.services.directory.audit.entries(Filter(target="user:ann"))
        assert {"credit.add", "credit.grant"} <= {entry.action for entry in entries}
        assert await ledger.findings(deep=True) == []
