"""The coordinator on a real etcd of one member, where there is one; and what is said where none answers."""

from pathlib import Path

import pytest

from gateway.coordination.coordinator import Coordinator, CoordinatorUnavailable
from gateway.coordination.etcd import EtcdCoordinator
from gateway.coordination.etcd_members import EtcdMembers
from tests.gateway.coordination import contract
from tests.gateway.coordination.etcd_server import ETCD, Etcd

pytestmark = pytest.mark.anyio


def coordinator_at(urls: list[str], timeout_s: float = 3.0) -> Coordinator:
    return EtcdCoordinator(EtcdMembers(urls, timeout_s=timeout_s))


@pytest.mark.skipif(ETCD is None, reason="needs etcd: apt-get install etcd-server")
async def test_it_does_what_coordinators_do(tmp_path: Path) -> None:
    with Etcd(tmp_path, 1) as etcd:
        one, other = coordinator_at(etcd.urls), coordinator_at(etcd.urls)
        started = await contract.lease_within(one, "started")
        await one.release(started)
        await contract.leases_are_held_by_one(one, other)
        await contract.a_lease_ends_with_its_time(one, other)
        await contract.of_many_at_once_one_gets_it(one, other)
        await contract.entries_are_compared_and_changed(one, other)
        await contract.entries_end_with_their_time(one, other)
        await contract.a_watch_tells_what_is_and_what_comes(one, other)
        await contract.nonsense_is_refused(one)
        await one.aclose()
        await other.aclose()


async def test_without_a_member_that_answers_it_says_so() -> None:
    coordinator = coordinator_at(["http://127.0.0.1:9", "http://127.0.0.1:10"])
    with pytest.raises(CoordinatorUnavailable):
        await coordinator.acquire("chores", 5)
    with pytest.raises(CoordinatorUnavailable):
        await coordinator.put("a", b"", revision=0)
    await coordinator.aclose()
