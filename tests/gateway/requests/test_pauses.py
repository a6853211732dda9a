"""A backend that answers 429 or 503 gets no request for that model for a while, and requests wait until then."""

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from tests.gateway.http.edges import Backend, Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send

pytestmark = pytest.mark.anyio

MODELS = {"models": ("m", "n")}
STATUSES = {429: b"429 Too Many Requests", 503: b"503 Service Unavailable"}


class Limited:
    """Refuses requests for `m` so many times, and answers all others."""

    def __init__(self, status: int, times: int, retry_after: str = "") -> None:
        self.refusal = STATUSES[status]
        self.times = times
        self.asked_s: list[float] = []
        self.retry_after = b"retry-after: %b\r\n" % retry_after.encode() if retry_after else b""

    async def __call__(self, body: bytes, writer: Writer) -> None:
        self.asked_s.append(time.monotonic())
        if json.loads(body)["model"] == "m" and self.times:
            self.times -= 1
            error = b'{"error": {"message": "slow down", "code": "slow_down"}}'
            writer.write(whole(error, self.refusal, self.retry_after))
        else:
            writer.write(whole(ANSWER))


def asked(desk: Backend, model: str) -> int:
    return sum(json.loads(body)["model"] == model for body in desk.requests)


@pytest.mark.parametrize("status", STATUSES)
async def test_a_pause_of_one_model_is_told_and_is_none_of_the_others(tmp_path: Path, status: int) -> None:
    async with (
        backend(Limited(status, 9, "500")) as desk,
        road(tmp_path, desk.base_url, backend=MODELS) as running,
    ):
        for _ in range(4):  # it ends later than anybody's patience
            refused = await receive(await send(running))
            assert refused.status == status
            assert refused.error["type"] == ("rate_limit_error" if status == 429 else "overloaded_error")
            assert 400 < int(refused.headers["retry-after"]) <= 500
            assert (await receive(await send(running, model="n"))).content == ANSWER
        assert (asked(desk, "m"), asked(desk, "n")) == (1, 4)
        await nothing_is_left(running)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("form", ["seconds", "date", "none"])
async def test_a_request_waits_until_the_pause_is_over(tmp_path: Path, status: int, form: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    limited = Limited(status, 1, {"seconds": "2", "date": date, "none": ""}[form])
    async with backend(limited) as desk, road(tmp_path, desk.base_url, backend=MODELS) as running:
        first = await send(running)
        await until(lambda: running.services.turns.all_waiting == 1)
        pause_ends_s = running.services.health.of("pool:first").breakers.of("m").asked_until_s
        # Nobody is sent there meanwhile.
        second = await send(running)
        await until(lambda: running.services.turns.all_waiting == 2 or asked(desk, "m") > 1)
        for connection in (first, second):
            assert (await receive(connection)).content == ANSWER
        assert asked(desk, "m") == 3
        assert min(limited.asked_s[1:]) >= pause_ends_s > limited.asked_s[0]
        await nothing_is_left(running)


async def test_who_has_no_patience_gets_the_backends_own_refusal(tmp_path: Path) -> None:
    async with backend(Limited(429, 9, "3")) as desk, road(tmp_path, desk.base_url) as running:
        refused = await receive(await send(running, millrace={"deadline_s": 1}))
        assert (refused.status, refused.error["code"]) == (429, "slow_down")
        assert 0 < int(refused.headers["retry-after"]) <= 3
        assert len(desk.requests) == 1
        await nothing_is_left(running)


async def test_another_backend_is_asked_before_anybody_waits(tmp_path: Path) -> None:
    async with (
        backend(Limited(429, 9, "500")) as one,
        backend(Limited(429, 0)) as other,
        road(tmp_path, one.base_url, other.base_url) as running,
    ):
        for _ in range(4):
            assert (await receive(await send(running))).content == ANSWER
        assert len(one.requests) <= 1
        await nothing_is_left(running)
