"""A tunnel is kept open whatever cloudflared does; its address never leads elsewhere, its token stays a file."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from market.seller.reach import Reach, Reaches
from market.seller.tunnel import Probe, Tunnel, TunnelPace
from market.seller.tunnel_process import TunnelOptions
from tests.fakes.cloudflared import GOOD_TOKEN, VERSION, Behaviour, Installed

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
QUICK = TunnelPace(
    ready_s=20.0,
    first_probe_after_s=0.0,
    look_every_s=0.02,
    answer_s=10.0,
    misses_max=2,
    lost_s=20.0,
    probe_every_s=0.05,
    backoff_first_s=0.01,
    backoff_max_s=0.05,
    failures_per_protocol=2,
    grace_s=1.0,
)


class Running:
    """A tunnel that runs, and what it has told in its order."""

    def __init__(self, installed: Installed, tunnel: Tunnel) -> None:
        self.installed = installed
        self.tunnel = tunnel
        self._changes = tunnel.reaches.changes()

    async def until(self, is_it: Callable[[Reach], bool]) -> Reach:
        async with asyncio.timeout(PATIENCE_S):
            async for reach in self._changes:
                if is_it(reach):
                    return reach
        raise AssertionError("it tells no more")

    async def open(self) -> str:
        reach = await self.until(lambda reach: reach.address is not None)
        assert reach.address
        return reach.address

    async def closed(self, why: str) -> None:
        await self.until(lambda reach: reach.address is None and why in reach.why)


@asynccontextmanager
async def running(
    folder: Path,
    behaviour: Behaviour | None = None,
    options: TunnelOptions | None = None,
    pace: TunnelPace = QUICK,
    probe: Probe | None = None,
) -> AsyncIterator[Running]:
    installed = Installed(folder / "bin", behaviour)
    base = options or TunnelOptions("http://127.0.0.1:9")
    tunnel = Tunnel(replace(base, cloudflared=str(installed.path), allows_loopback=True), Reaches(), pace, probe)
    task = asyncio.create_task(tunnel.run())
    try:
        yield Running(installed, tunnel)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert tunnel.reaches.now.address is None
        assert not [start["pid"] for start in installed.starts() if psutil.pid_exists(start["pid"])]


async def _reaches(url: str) -> bytes:
    """What is under an address, asked as a buyer would."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.post(url, content=b"hello")).content


@asynccontextmanager
async def origin(answer: bytes = b"it is me") -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(answer), answer)
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_quick_tunnel_leads_here_and_has_another_address_after_it_crashed(tmp_path: Path) -> None:
    async with origin() as url, running(tmp_path, options=TunnelOptions(url)) as it:
        first = await it.open()
        assert await _reaches(first) == b"it is me"
        assert it.tunnel._version == VERSION
        it.installed.behave(Behaviour(is_ending=True))
        await it.closed("no free edge addresses left")
        it.installed.behave(Behaviour())
        second = await it.open()
        assert second != first
        assert await _reaches(second) == b"it is me"


async def test_starts_that_fail_are_tried_again_by_the_other_protocol_too(tmp_path: Path) -> None:
    async with running(tmp_path, Behaviour(failing_starts=4)) as it:
        await it.closed("could not be asked for a quick tunnel")
        await it.open()
        protocols = ["http2" if "http2" in start["arguments"] else "auto" for start in it.installed.starts()]
        assert protocols == ["auto", "auto", "http2", "http2", "auto"]


async def test_behind_a_firewall_without_udp_it_comes_up_by_http2(tmp_path: Path) -> None:
    pace = replace(QUICK, ready_s=3.0, failures_per_protocol=1)
    async with running(tmp_path, Behaviour(needs_http2=True), pace=pace) as it:
        await it.closed("port 7844")
        await it.open()
        assert "http2" in it.installed.starts()[-1]["arguments"]


async def test_an_address_is_withdrawn_while_cloudflare_is_lost_and_then_the_same_one_comes_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as it:
        address = await it.open()
        it.installed.behave(Behaviour(is_ready=False))
        await it.closed("is reconnecting")
        it.installed.behave(Behaviour())
        assert await it.open() == address
        assert len(it.installed.starts()) == 1


async def test_one_that_never_gets_cloudflare_back_or_hangs_is_restarted(tmp_path: Path) -> None:
    pace = replace(QUICK, lost_s=0.2, answer_s=0.5)
    async with running(tmp_path, pace=pace) as it:
        await it.open()
        it.installed.behave(Behaviour(is_ready=False))
        await it.closed("did not reconnect")
        it.installed.behave(Behaviour())
        await it.open()
    pace = replace(QUICK, answer_s=0.5)
    async with running(tmp_path / "hangs", pace=pace) as it:
        await it.open()
        it.installed.behave(Behaviour(is_hanging=True, ignores_sigterm=True))
        await it.closed("does not answer")
        it.installed.behave(Behaviour())
        await it.open()


async def test_a_named_tunnels_token_is_a_file_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", GOOD_TOKEN)
    token = tmp_path / "token"
    token.write_text("wrong")
    token.chmod(0o644)
    options = TunnelOptions("http://127.0.0.1:9", token, "https://mill.example.com")
    async with running(tmp_path, options=options) as it:
        await it.closed("can be read by other users. Run: chmod 600")
        token.chmod(0o600)
        await it.closed("its token is not valid")
        token.write_text(GOOD_TOKEN + "\n")
        assert await it.open() == "https://mill.example.com"
        assert GOOD_TOKEN not in str(it.installed.starts())
        assert it.tunnel.keeper_pid is not None
        for process in psutil.Process(it.tunnel.keeper_pid).children():
            assert GOOD_TOKEN not in str([process.cmdline(), process.environ()])


async def test_an_address_of_another_server_is_not_offered(tmp_path: Path) -> None:
    """Threat 21: the name of a quick tunnel leads to another server now."""
    is_ours = True

    async def probe(address: str) -> bool:
        return is_ours and await _reaches(address) == b"it is me"

    pace = replace(QUICK, reached_s=0.5)
    async with origin() as url, running(tmp_path, None, TunnelOptions(url), pace, probe) as it:
        await it.open()
        is_ours = False
        await it.closed("does not lead here any more")
        await it.closed("Check that it is the tunnel's own name")
        is_ours = True
        await it.open()


async def test_an_address_that_no_listing_may_have_is_refused(tmp_path: Path) -> None:
    options = TunnelOptions("http://127.0.0.1:9", tmp_path / "token", "https://10.0.0.7")
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(GOOD_TOKEN)
    async with running(tmp_path, options=options) as it:
        await it.closed("no buyer would use the address")


async def test_an_error_that_ends_the_tunnel_withdraws_its_address(tmp_path: Path) -> None:
    installed, reaches = Installed(tmp_path / "bin"), Reaches()
    options = TunnelOptions("http://127.0.0.1:9", cloudflared=str(installed.path), allows_loopback=True)

    async def probe(address: str) -> bool:
        if reaches.now.address == address:
            raise ZeroDivisionError
        return True

    with pytest.raises(ZeroDivisionError):
        await Tunnel(options, reaches, QUICK, probe).run()
    assert not reaches.now.is_open


async def test_without_the_program_its_owner_reads_where_to_get_it(tmp_path: Path) -> None:
    tunnel = Tunnel(TunnelOptions("http://127.0.0.1:9", cloudflared=str(tmp_path / "none")), Reaches(), QUICK)
    task = asyncio.create_task(tunnel.run())
    await Running(Installed(tmp_path / "bin"), tunnel).closed(
        "Get cloudflared from https://developers.cloudflare.com/"
    )
    task.cancel()
    await asyncio.wait({task})


async def test_nothing_is_left_when_the_seller_is_killed(tmp_path: Path) -> None:
    """kill -9, after which no process can clean up: the keeper sees its pipe close."""
    installed = Installed(tmp_path, Behaviour(ignores_sigterm=True))
    program = (
        "import asyncio, sys\n"
        "from market.seller.reach import Reaches\n"
        "from market.seller.tunnel import Tunnel, TunnelPace\n"
        "from market.seller.tunnel_process import TunnelOptions\n"
        "options = TunnelOptions('http://127.0.0.1:9', cloudflared=sys.argv[1], allows_loopback=True)\n"
        "asyncio.run(Tunnel(options, Reaches(), TunnelPace(look_every_s=0.02, grace_s=0.2)).run())\n"
    )
    seller = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(installed.path))
    async with asyncio.timeout(PATIENCE_S):
        while not installed.starts():
            await asyncio.sleep(0.02)
    tunnel = psutil.Process(installed.starts()[0]["pid"])
    family = [tunnel, *psutil.Process(seller.pid).children(recursive=True)]
    os.kill(seller.pid, signal.SIGKILL)
    await seller.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, PATIENCE_S)
    assert not alive


async def _got(client: httpx.AsyncClient, address: str) -> httpx.Response:
    """A caller that has left frees its slot a moment later."""
    while (answer := await client.get(address)).status_code == 429:
        await asyncio.sleep(0.02)
    return answer


async def test_events_over_get_come_late_and_a_silent_origin_is_given_up(tmp_path: Path) -> None:
    """That the fake does what cloudflared does; the market uses POST alone, and sends an event at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/silent" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: first\n\n")
            await writer.drain()
            await released.wait()
            writer.write(b"data: last\n\n")
        else:
            await released.wait()
        writer.close()

    serving: list[asyncio.Task[None] | None] = []
    released = asyncio.Event()
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client,
    ):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        behaviour = Behaviour(first_byte_s=1.0, in_flight_max=2)
        async with running(tmp_path, behaviour, TunnelOptions(url)) as it:
            address = await it.open()
            assert (await client.post(f"{address}/silent")).status_code == 524
            async with client.stream("POST", address) as answer:
                pieces = answer.aiter_bytes()
                assert await anext(pieces) == b"data: first\n\n"
            async with client.stream("POST", address) as first, client.stream("POST", address) as second:
                assert (first.status_code, second.status_code) == (200, 200)
                assert (await client.post(address)).status_code == 429
            late = asyncio.create_task(_got(client, address))
            done, _ = await asyncio.wait({late}, timeout=0.2)
            assert not done
            released.set()
            assert (await late).content == b"data: first\n\ndata: last\n\n"
            await asyncio.wait([task for task in serving if task])
