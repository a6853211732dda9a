"""What is charged for an answer that breaks off: what had left for the caller, and nothing else."""

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from sqlalchemy import select

from accounting.metering.delivered import Called, Delivered, count_delivered
from accounting.metering.recharge import mischarges
from accounting.metering.tokenizers import load_counter
from accounting.tables import usage_table
from gateway.billing.metering.factory import write_prices
from gateway.settings import MeteringSettings
from tests.accounting.tokenizer import make_tokenizer
from tests.gateway.http.edges import DONE, SSE, Backend, Edge, Writer, backend, chunk, question, until, whole
from tests.gateway.requests.roads import road, text_of, with_paid_lane
from tests.gateway.requests.talkers import PRICE as WORD_PRICE
from tests.gateway.requests.talkers import Talker, stream

pytestmark = pytest.mark.anyio

EVENTS = 4_000
WORD = re.compile(rb"w[0-9]{6} ")
TOKENS_A_WORD = 2
PATHS = {
    "chat": b"/v1/chat/completions",
    "completion": b"/v1/completions",
    "responses": b"/v1/responses",
    "messages": b"/v1/messages",
}


UVLOOP = ("asyncio", {"use_uvloop": True})
ASYNCIO = ("asyncio", {"use_uvloop": False})
"""Each writes to sockets in its own way. Gateways run on uvloop."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return UVLOOP


class Row(NamedTuple):
    outcome: str
    count_source: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    tool_tokens: int
    charge_nano: int


def event(name: str, number: int) -> bytes:
    """A word of eight bytes: two tokens where characters are counted."""
    text = f"w{number:06d} "
    said = {"text": text} if name == "completion" else {"delta": {"content": text}}
    return b"data: " + json.dumps({"id": "x", "choices": [{"index": 0, **said}]}).encode() + b"\n\n"


def asked(name: str) -> dict[str, Any]:
    limit = {"responses": "max_output_tokens"}.get(name, "max_tokens")
    content = {"completion": {"prompt": "Hi"}, "responses": {"input": "Hi"}}.get(name, {})
    fields = {"model": "paid", "stream": True, limit: 100_000, **content}
    unwanted = {"completion": ("messages",), "responses": ("messages",)}.get(name, ())
    return {key: value for key, value in json.loads(question(**fields)).items() if key not in unwanted}


@asynccontextmanager
async def paid(tmp_path: Path, provider: Backend, **metering: Any) -> AsyncIterator[Edge]:
    settings = MeteringSettings(**metering)
    async with (
        road(tmp_path, metering=settings) as running,
        with_paid_lane(running, provider.base_url, "paid") as edge,
    ):
        # What the system keeps for a caller who does not read is what he gets for his money.
        for server in edge.server.servers:
            for listening in server.sockets:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        write_prices(edge.services.lanes, edge.services.request_log._write)
        yield edge
        with edge.services.request_log._read() as session:
            assert mischarges(session) == []


def rows(running: Edge) -> list[Row]:
    columns = [usage_table.c[name] for name in Row._fields]
    with running.services.request_log._read() as session:
        query = select(*columns).where(usage_table.c.lane == "cloud").order_by(usage_table.c.request_id)
        return [Row(*row) for row in session.execute(query)]


async def connect(running: Edge, name: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    caller = socket.socket()
    caller.setblocking(False)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(caller, ("127.0.0.1", running.port))
    await loop.sock_sendall(caller, running.request(json.dumps(asked(name)).encode(), path=PATHS[name]))
    return caller


async def read(caller: socket.socket, size: int) -> bytes:
    """So many bytes, or all there are before the end."""
    loop, taken = asyncio.get_running_loop(), b""
    async with asyncio.timeout(60):
        while len(taken) < size and (data := await loop.sock_recv(caller, size - len(taken))):
            taken += data
    return taken


@pytest.mark.parametrize(
    ("name", "pace", "anyio_backend"),
    [
        *((name, "as fast as it goes", UVLOOP) for name in PATHS),
        ("chat", "as fast as it goes", ASYNCIO),
        ("messages", "word by word", UVLOOP),
    ],
    ids=str,
)
async def test_a_caller_who_leaves_pays_for_what_the_system_took_for_him(
    tmp_path: Path, name: str, pace: str
) -> None:
    """Wherever he leaves: he says that he goes, and reads what is still on its way to him."""

    async def answer(_: bytes, writer: Writer) -> None:
        writer.write(SSE)
        for number in range(EVENTS):
            writer.write(chunk(event(name, number)))
            if pace == "word by word":
                await asyncio.sleep(0.002)
            await writer.drain()
        writer.write(chunk(DONE) + b"0\r\n\r\n")

    cuts = Random(f"{name} {pace}")
    async with backend(answer) as provider, paid(tmp_path, provider) as running:
        for times in range(1, 3):
            caller = await connect(running, name)
            with caller:
                taken = await read(caller, cuts.randrange(500, 20_000 if pace == "word by word" else 100_000))
                caller.shutdown(socket.SHUT_WR)
                taken += await read(caller, 2**30)
            await until(lambda count=times: len(rows(running)) == count, 30)  # type: ignore[misc]
            row = rows(running)[-1]
            words = len(WORD.findall(taken))
            # Of the piece that was being written when he left, the system may have taken some after all.
            assert words - 15 <= row.completion_tokens / TOKENS_A_WORD <= words
            assert row.completion_tokens == row.charge_nano
            assert (row.outcome, row.count_source) == ("interrupted", "characters")


async def test_a_caller_who_tears_the_connection_never_pays_for_more_than_was_sent(tmp_path: Path) -> None:
    sent = 0

    async def answer(_: bytes, writer: Writer) -> None:
        nonlocal sent
        sent = 0
        writer.write(SSE)
        for number in range(EVENTS):
            writer.write(chunk(event("chat", number)))
            sent += 1
            await writer.drain()

    async with backend(answer) as provider, paid(tmp_path, provider) as running:
        caller = await connect(running, "chat")
        with caller:
            taken = await read(caller, 9_000)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: bool(rows(running)), 30)
        (row,) = rows(running)
        had = len(WORD.findall(taken))
        # Beyond what he read there is what the system had taken: two small buffers.
        assert had <= row.completion_tokens / TOKENS_A_WORD <= min(sent, had + 400)


@pytest.mark.parametrize("said", ["nothing", "usage", "role", "error"])
async def test_an_answer_that_fails_without_a_word_costs_nothing_not_even_its_prompt(
    tmp_path: Path, said: str
) -> None:
    events = {
        "nothing": b": waiting\n\n",
        "usage": b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\n',
        "role": b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
        "error": b'data: {"choices":[{"index":0,"delta":{}}]}\n\ndata: {"error":{"message":"no"}}\n\n',
    }

    async def answer(_: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(events[said]))
        await writer.drain()
        writer.close()

    async with backend(answer) as provider, paid(tmp_path, provider) as running:
        await running.ask(**asked("chat"))
        await until(lambda: bool(rows(running)), 30)
        (row,) = rows(running)
        assert (row.outcome, row.completion_tokens, row.charge_nano) == ("failed", 0, 0)


async def test_a_whole_answer_costs_what_its_provider_counts_thoughts_apart(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 70,
        "completion_tokens_details": {"reasoning_tokens": 60},
    }

    async def answer(body: bytes, writer: Writer) -> None:
        if json.loads(body).get("stream"):
            counted = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
            writer.write(SSE + chunk(event("chat", 1)) + chunk(counted) + chunk(DONE) + b"0\r\n\r\n")
        else:
            choice = {"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}
            writer.write(whole(json.dumps({"choices": [choice], "usage": usage}).encode()))

    async with backend(answer) as provider, paid(tmp_path, provider) as running:
        for stream in (True, False):
            await running.ask(**asked("chat") | {"stream": stream})
        await until(lambda: len(rows(running)) == 2, 30)
        assert set(rows(running)) == {Row("complete", "upstream", 9, 70, 60, 0, 70)}


def delta(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode() + b"\n\n"


def call(name: str, arguments: str, index: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize("cut", [0, 7])
async def test_what_a_tokenizer_is_known_for_is_counted_by_it_however_it_came(tmp_path: Path, cut: int) -> None:
    """A provider that breaks off, of which the caller has thoughts, text and calls of tools."""
    content, arguments = "the mill grinds \U0001f33e", '{"what": "the race brings"}'
    events = [
        delta(reasoning_content="what the ra"),
        delta(reasoning_content="ce brings"),
        delta(content=content[:cut]),
        delta(content=content[cut:-1] + "\ud83c"),
        delta(content="\udf3e"),
        delta(**call("mill", arguments[:cut])),
        delta(**call("", arguments[cut:])),
        delta(**call("race", "", 1)),
    ]

    async def answer(_: bytes, writer: Writer) -> None:
        writer.write(SSE)
        for each in events:
            writer.write(chunk(each))
            await writer.drain()
        writer.close()

    file = make_tokenizer(tmp_path)
    named = {"paid": {"path": file.path, "sha256": file.sha256}}
    delivered = Delivered(content, "what the race brings", (Called("mill", arguments), Called("race", "")))
    counts = count_delivered(load_counter(file), delivered)
    tokens = counts.completion_tokens
    async with backend(answer) as provider, paid(tmp_path, provider, tokenizers=named) as running:
        await running.ask(**asked("chat"))
        await until(lambda: bool(rows(running)), 30)
        expected = Row("failed", "tokenizer", 5, tokens, counts.reasoning_tokens, counts.tool_tokens, tokens)
        assert rows(running) == [expected]
        assert counts.tool_tokens > counts.reasoning_tokens > 0


async def test_a_stream_that_credits_end_says_the_count_that_is_booked(tmp_path: Path) -> None:
    file = make_tokenizer(tmp_path)
    metering = MeteringSettings(tokenizers={"paid": {"path": file.path, "sha256": file.sha256}})
    async with (
        backend(Talker(2000, waits_at=750)) as provider,
        road(tmp_path, metering=metering) as own,
        with_paid_lane(own, provider.base_url, "paid", price=WORD_PRICE, credit_nano=700) as running,
    ):
        streamed = await stream(running, stream_options={"include_usage": True})
        assert streamed.ended == "credits_exhausted"
        told = streamed.chunks[-1]["usage"]["completion_tokens"]
        assert told == load_counter(file).count((text_of(streamed.answered),))
        await until(lambda: bool(rows(running)), 30)
        (row,) = rows(running)
        assert (row.count_source, row.completion_tokens) == ("tokenizer", told)


async def test_a_backend_that_counts_otherwise_than_its_answer_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "the mill grinds what the race brings " * 20

    async def answer(_: bytes, writer: Writer) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 2 * tokens}
        counted = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        writer.write(SSE + chunk(delta(content=text)) + chunk(counted) + chunk(DONE) + b"0\r\n\r\n")

    file = make_tokenizer(tmp_path)
    tokens = load_counter(file).count([text])
    named = {"m": {"path": file.path, "sha256": file.sha256}}
    metering = MeteringSettings(tokenizers=named, check_ratio=1.0)
    async with backend(answer) as provider, road(tmp_path, provider.base_url, metering=metering) as running:
        await running.ask(stream=True)
        metric = running.services.metrics
        await until(lambda: b'difference_ratio_count{lane="pool"} 1.0' in metric.render(), 30)
        assert b'difference_ratio_sum{lane="pool"} 2.0' in metric.render()
    assert "backend's token count differs" in capsys.readouterr().out
