"""Three members of a real etcd: leadership, membership and rights outlive the loss of any one of them."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.coordination.coordinator import CoordinatorUnavailable, HeldLease
from gateway.coordination.etcd import EtcdCoordinator
from gateway.coordination.etcd_members import EtcdMembers
from gateway.coordination.leadership import Leadership
from gateway.coordination.membership import Membership
from gateway.coordination.rights import RevokedKeys
from tests.gateway.coordination import contract
from tests.gateway.coordination.etcd_server import ETCD, Etcd, Member

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(ETCD is None, reason="needs etcd: apt-get install etcd-server"),
]

TTL_S = 3.0
STEP_S = 60.0


class Gateway:
    """What a gateway does with a coordinator."""

    def __init__(self, name: str, urls: list[str]) -> None:
        self.coordinator = EtcdCoordinator(EtcdMembers(urls, timeout_s=1.0))
        self.leads = Leadership(self.coordinator, "maturity", TTL_S)
        self.membership = Membership(self.coordinator, name, name.encode(), TTL_S)
        self.revoked = RevokedKeys(self.coordinator, lambda: None)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.tasks = [asyncio.create_task(each.run()) for each in (self.leads, self.membership, self.revoked)]

    async def freeze(self) -> None:
        """Gone without a word, as a process that is killed: nothing is given back."""
        await self.coordinator.aclose()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.coordinator.aclose()


@asynccontextmanager
async def gateways(urls: list[str]) -> AsyncIterator[list[Gateway]]:
    # Each begins at another member, and knows them all.
    several = [Gateway(f"g{n}", [*urls[n:], *urls[:n]]) for n in range(3)]
    for gateway in several:
        gateway.start()
    try:
        yield several
    finally:
        for gateway in several:
            await gateway.stop()


async def until(holds: Callable[[], bool]) -> float:
    """How long it took, in seconds."""
    began_s = time.monotonic()
    async with asyncio.timeout(STEP_S):
        while not holds():
            await asyncio.sleep(0.02)
    return time.monotonic() - began_s


def leaders(several: list[Gateway]) -> list[Gateway]:
    return [gateway for gateway in several if gateway.leads.lease]


def leader_of(etcd: Etcd) -> Member:
    """Raft's own leader."""
    import httpx

    for member in etcd.members:
        status = httpx.post(f"{member.url}/v3/maintenance/status", json={}, timeout=60).json()
        if status["leader"] == status["header"]["member_id"]:
            return member
    raise AssertionError("etcd has no leader")


async def work(gateway: Gateway, key_id: str) -> None:
    """A key is revoked, however often that has to be asked for."""
    async with asyncio.timeout(STEP_S):
        while True:
            try:
                return await gateway.revoked.add(key_id)
            except CoordinatorUnavailable:
                await asyncio.sleep(0.05)


async def test_the_loss_of_any_one_member_is_survived(
    tmp_path: Path, record_property: Callable[..., None]
) -> None:
    with Etcd(tmp_path, 3) as etcd:
        async with gateways(etcd.urls) as several:
            await until(lambda: len(leaders(several)) == 1)
            await until(lambda: all(len(each.membership.members) == 3 for each in several))
            figures, revoked = {}, set[str]()
            epoch = _epoch(several)
            for member in list(etcd.members):
                role = "leader" if leader_of(etcd) is member else "follower"
                before = leaders(several)
                member.kill()
                began_s = time.monotonic()
                key_id = f"key-{member.name}"
                await work(several[0], key_id)
                figures[f"{member.name} ({role}) killed: write after s"] = time.monotonic() - began_s
                revoked.add(key_id)
                figures[f"{member.name} known everywhere after s"] = await until(
                    lambda: all(revoked <= each.revoked for each in several)
                )
                await until(lambda: len(leaders(several)) == 1)
                assert _epoch(several) >= epoch
                assert _epoch(several) == epoch or leaders(several) != before, "nobody was deposed without need"
                epoch = _epoch(several)
                member.start()
                await until(lambda: all(len(each.membership.members) == 3 for each in several))
            # A gateway that leads goes without a word: another one leads with a higher epoch.
            gone = leaders(several)[0]
            await gone.freeze()
            left = [each for each in several if each is not gone]
            figures["gateway gone: led again after s"] = await until(lambda: len(leaders(left)) == 1)
            assert _epoch(left) > epoch
            await until(lambda: all(len(each.membership.members) == 2 for each in left))
            fresh = RevokedKeys(left[0].coordinator, lambda: None)
            await fresh.load()
            assert set(fresh) == revoked
            for name, figure in figures.items():
                record_property(name, figure)
                print(f"{name} {figure:.2f}")  # noqa: T201


async def test_of_two_sides_only_the_one_with_most_members_decides(tmp_path: Path) -> None:
    """A member cut off from the others answers nothing that could be wrong, and keeps up again afterwards."""
    with Etcd(tmp_path, 3) as etcd:
        lonely = EtcdCoordinator(EtcdMembers([etcd.urls[0]], timeout_s=2.0))
        others = EtcdCoordinator(EtcdMembers(etcd.urls[1:], timeout_s=2.0))
        first = await contract.lease_within(others, "chores")
        for member in etcd.members[1:]:
            member.signal(signal.SIGSTOP)
        for asking in (lonely.acquire("more", 5), lonely.put("a", b"1"), lonely.get("a")):
            with pytest.raises(CoordinatorUnavailable):
                await asking
        for member in etcd.members[1:]:
            member.signal(signal.SIGCONT)
        etcd.members[0].signal(signal.SIGSTOP)
        async with asyncio.timeout(STEP_S):
            while not await _renewed(others, first):
                await asyncio.sleep(0.1)
        etcd.members[0].signal(signal.SIGCONT)
        await contract.lease_within(lonely, "free")
        assert await lonely.acquire("chores", 5) is None
        await lonely.aclose()
        await others.aclose()


async def _renewed(coordinator: EtcdCoordinator, lease: HeldLease) -> bool:
    try:
        return await coordinator.renew(lease)
    except CoordinatorUnavailable:
        return False


async def test_an_etcd_that_was_recreated_begins_above_what_the_database_knows(tmp_path: Path) -> None:
    epochs: list[int] = []
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        with Etcd(tmp_path / name, 1) as etcd:
            coordinator = EtcdCoordinator(EtcdMembers(etcd.urls))
            lease = await contract.lease_within(coordinator, "chores", above=max(epochs, default=41))
            epochs.append(lease.epoch)
            await coordinator.aclose()
    assert epochs == [42, 43]


def _epoch(several: list[Gateway]) -> int:
    return max(lease.epoch for gateway in several if (lease := gateway.leads.lease))
