"""Second copies of a signed record, made without its key and posted to a gateway that anyone may tell records."""

import json
import time
from collections.abc import Callable

import pytest

from market.protocol.records.canonical import canonical
from market.protocol.records.envelope import Record
from market.protocol.records.exchange import BUCKETS
from tests.market.curves import GROUP_ORDER
from tests.market.marketplace.conftest import Hall
from tests.market.parties import signed_record
from tests.market.test_listings import LISTING

pytestmark = pytest.mark.anyio


def spelled(spell: Callable[[str], str]) -> Callable[[Record], str]:
    def write(record: Record) -> str:
        members = json.loads(record.raw)
        return canonical(members | {"signature": spell(members["signature"])}).decode()

    return write


def beyond_the_group(signature: str) -> str:
    half = int.from_bytes(bytes.fromhex(signature[64:]), "little") + GROUP_ORDER
    return signature[:64] + half.to_bytes(32, "little").hex()


CHANGES: list[Callable[[Record], str]] = [
    spelled(lambda signature: signature + "\n"),
    spelled(lambda signature: signature.upper()),
    spelled(beyond_the_group),
    lambda record: record.raw.decode() + "\n",
]


async def test_a_second_copy_of_a_record_displaces_no_other(hall: Hall) -> None:
    """Of two records of one revision, the one with the larger digest stays: half of the copies would have won."""
    made_ms = time.time_ns() // 10**6
    originals = [
        signed_record(f"seller{n}", "listing", LISTING, made_ms=made_ms, lasts_ms=300_000) for n in range(16)
    ]
    async with hall.served.client() as anyone:

        async def tell(records: list[str]) -> int:
            answer = await anyone.post("/market/v1/gossip/records", json={"records": records})
            assert answer.status_code == 200, answer.text
            return int(answer.json()["taken"])

        async def known() -> set[str]:
            answer = await anyone.post("/market/v1/gossip/digest", json={"summary": ["0" * 64] * BUCKETS})
            return set(answer.json()["records"])

        raws = [record.raw.decode() for record in originals]
        before = await known()
        assert await tell(raws) == len(originals)
        changed = [change(record) for record in originals for change in CHANGES]
        assert await tell(changed) == 0
        assert await known() == before | set(raws)
