"""The auditor over a real socket: a listing that answers with another model is suspended, an honest one is not."""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from market.audits.audit_client import AuditClient, Unanswered
from market.audits.audit_target import AuditTarget
from market.audits.auditor import Auditor
from market.audits.canary_factory import freeze_canaries
from market.audits.own_engine import EngineAnswer
from market.audits.probe_store import ProbeStore
from market.audits.probes import Probe, sold_as
from market.protocol.audits.canaries import failings, freeze
from market.protocol.audits.logprobs import GreedyToken
from market.protocol.audits.verdicts import Audit, Decision
from runtime.workers.exchange import Message, Receive, Send

WEIGHTS = "a" * 64
SOLD_AS = sold_as(WEIGHTS, "bf16")
ANSWERS = {f"What is number {n}?": f"It is the {n}th of them" for n in range(24)}
HONEST, CHEAT = "1" * 64, "2" * 64


class Buyer:
    """What the buyer's process does over its socket, with sellers that answer at once."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = dict(scope["headers"])
        assert headers[b"x-millrace-alone"] == b"1"
        assert int(headers[b"x-millrace-ceiling-nano"]) > 0
        request = msgspec.json.decode(body)
        assert request["temperature"] == 0
        text = self.reply(headers[b"x-millrace-listing"].decode(), request["messages"][0]["content"])
        status = 200 if text else 503
        answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})

    def reply(self, listing: str, prompt: str) -> str:
        if listing == HONEST:
            return ANSWERS.get(prompt, "It is 48213.")
        return "I am another model." if listing == CHEAT else ""


@asynccontextmanager
async def buyer_at(path: Path) -> AsyncGenerator[AuditClient]:
    server = uvicorn.Server(uvicorn.Config(Buyer(), uds=str(path), log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
    asking = AuditClient(httpx.AsyncHTTPTransport(uds=str(path)))
    try:
        yield asking
    finally:
        await asking.close()
        server.should_exit = True
        await task


@pytest.fixture
def probe_store(tmp_path: Path) -> ProbeStore:
    probe_store = ProbeStore(tmp_path / "audits.db")
    for number, (prompt, answer) in enumerate(ANSWERS.items()):
        canary = freeze(prompt, [[GreedyToken(f"{word} ", margin=2.0) for word in answer.split()]] * 2)
        assert canary is not None
        probe_store.add_probe(Probe(f"c{number}", SOLD_AS, canary))
    return probe_store


def target(listing: str, quantization: str = "bf16") -> AuditTarget:
    return AuditTarget(listing, listing, listing, "mill", WEIGHTS, quantization, is_probation=True)


async def audited(
    probe_store: ProbeStore, path: Path, targets: Mapping[str, AuditTarget], requests: int
) -> dict[str, Decision]:
    """The last decision about each listing, after so many ordinary requests to each."""
    decisions: dict[str, Decision] = {}

    def tell(about: AuditTarget, audit: Audit, decision: Decision) -> None:
        decisions[about.listing] = decision

    async with buyer_at(path) as asking:
        auditor = Auditor(
            asking,
            probe_store,
            tell,
            chance=random.Random(4).random,
            now_ms=lambda: 1_790_000_000_000,
            pause_s_max=0.0,
        )
        task = asyncio.create_task(auditor.run())
        for _ in range(requests):
            for each in targets.values():
                await auditor.served(each)
            async with asyncio.timeout(60):
                await auditor.idle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return decisions


def test_another_model_is_suspended_and_the_honest_one_is_not(probe_store: ProbeStore, tmp_path: Path) -> None:
    targets = {"honest": target(HONEST), "cheat": target(CHEAT)}
    decisions = asyncio.run(audited(probe_store, tmp_path / "s", targets, 30))
    assert decisions[HONEST].action == "none"
    assert decisions[CHEAT].action == "suspend"
    # What is known outlives the process, and belongs to what the seller said that it sells.
    again = ProbeStore(tmp_path / "audits.db")
    case = again.case(target(CHEAT).id)
    assert case is not None
    assert case.stakes.is_proof
    assert len(again.audits(target(CHEAT).id)) == case.stakes.audits
    assert again.case(target(CHEAT, "int4").id) is None


def test_of_three_owners_the_one_who_is_alone_has_failed(probe_store: ProbeStore, tmp_path: Path) -> None:
    seen: list[tuple[str, str, bool]] = []

    async def compared() -> list[Probe]:
        async with buyer_at(tmp_path / "s") as asking:
            auditor = Auditor(
                asking,
                probe_store,
                lambda about, audit, _: seen.append((about.owner, audit.kind, audit.has_failed)),
                chance=lambda: 0.5,
                now_ms=lambda: 1,
            )
            targets = [replace(target(HONEST), owner=owner) for owner in ("a", "b")]
            await auditor.compare([*targets, target(CHEAT)], "What is number 3?")
            await auditor.compare([targets[0], target(CHEAT)], "What is number 3?")

            # And what the honest ones say is a canary from now on.
            async def engine(request: Mapping[str, Any]) -> EngineAnswer:
                return EngineAnswer(await asking.ask(HONEST, request, 1))

            return await freeze_canaries(SOLD_AS, "mill", [*ANSWERS], engine)

    probes = asyncio.run(compared())
    assert sorted(seen) == [
        (CHEAT, "redundancy", True),
        ("a", "redundancy", False),
        ("b", "redundancy", False),
    ]
    assert len(probes) == len(ANSWERS)
    assert all(failings(probe.canary, ANSWERS[probe.canary.prompt]) == () for probe in probes)


def test_where_nothing_is_known_owners_are_compared(tmp_path: Path) -> None:
    """No canary was ever frozen for these weights; three owners sell them, and one of them by two names."""
    seen: list[tuple[str, bool]] = []
    targets = [replace(target(HONEST), owner=owner) for owner in ("a", "b")]
    cheat = target(CHEAT)

    async def served() -> None:
        async with buyer_at(tmp_path / "s") as asking:
            auditor = Auditor(
                asking,
                ProbeStore(tmp_path / "empty.db"),
                lambda about, audit, _: seen.append((about.owner, audit.has_failed)),
                chance=lambda: 0.0,
                now_ms=lambda: 1,
                left_nano=lambda: 10**9,
                peers=lambda _: [cheat, cheat, *targets],
                prompt=lambda: "What is number 3?",
            )
            task = asyncio.create_task(auditor.run())
            await auditor.served(cheat)
            async with asyncio.timeout(60):
                await auditor.idle()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(served())
    assert sorted(seen) == [(CHEAT, True), ("a", False), ("b", False)]


def test_a_seller_that_does_not_answer_has_not_failed(probe_store: ProbeStore, tmp_path: Path) -> None:
    away = target("3" * 64)

    async def answered() -> None:
        async with buyer_at(tmp_path / "s") as asking:
            with pytest.raises(Unanswered):
                await asking.ask(away.listing, {"temperature": 0, "messages": [{"content": "?"}]}, 1)

    asyncio.run(answered())
    assert asyncio.run(audited(probe_store, tmp_path / "t", {"away": away}, 5)) == {}
    assert probe_store.audits(away.id) == []


def test_a_probe_that_many_owners_fail_is_wrong_itself(probe_store: ProbeStore) -> None:
    before = len(probe_store.probes(SOLD_AS))
    for owner in ("a", "b", "b", "c"):
        probe_store.note_use("c1", owner, has_failed=True)
    for _ in range(20):
        probe_store.note_use("c2", "a", has_failed=False)
    left = [probe.id for probe in probe_store.probes(SOLD_AS)]
    assert len(left) == before - 2
    assert not {"c1", "c2"} & {*left}
    assert probe_store.probes(sold_as(WEIGHTS, "int8")) == []
