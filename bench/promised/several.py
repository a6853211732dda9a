"""Measure how soon two gateways with one PostgreSQL and one Redis agree, and how long they wait for a dead one."""

import asyncio
import itertools
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gateway.identity.key_watch import LOOK_EVERY_S
from tests.crowds import FREE, PAID, PAID_NANO, ask, crowd, new_key, order
from tests.databases import Databases, frozen
from tests.fakes.counting_provider import counting_provider
from tests.gateway.hostile.test_requests import FORMS as HOSTILE
from tests.gateways import Gateway, until
from tests.journeys.test_several_gateways import Fleet
from tests.redis_server import RedisServer

KEY = "a key revoked at one gateway is refused at another"
LIMIT = "a limit set at one gateway holds at another"
SLOW_CLIENTS = "20 requests beside 200 clients that drip"
FORMS = "the slowest of many hostile forms is refused"
HANG_UPS = "the work of 100 requests ends after their callers hung up"
FROZEN_FREE = "a free request while PostgreSQL stands still"
FROZEN_PAID = "a paid request is refused while PostgreSQL stands still"
PLACES = "places of a killed gateway are free"
LEADER = "a paid request is served after the leader of the ledger was killed"
CREDITS = "credits reserved by a killed gateway are free"
SECOND_SIGNAL = "a second signal ends a gateway that drains"

_PLACES, _HANG_UPS, _SLOW, _REQUESTS = 4, 100, 200, 20
_NEVER_S = 120.0
_RICH_NANO = 10**9


def measure() -> dict[str, float]:
    """Return seconds."""
    with _fleet() as fleet:
        one, two = fleet.gateways
        found = {
            KEY: _revoked_s(one, two),
            LIMIT: _limited_s(one, two),
            SLOW_CLIENTS: _beside_slow_clients_s(two),
            FORMS: max(_form_s(two, form) for form in HOSTILE.values()),
            HANG_UPS: _hang_ups_s(fleet, two),
        }
        found |= _frozen(fleet, two)
        doomed, survivor = (one, two) if _leads(one) else (two, one)
        found |= _killed(fleet, doomed, survivor)
        found[SECOND_SIGNAL] = _second_signal_s(fleet, survivor)
        return found


@contextmanager
def _fleet() -> Iterator[Fleet]:
    """Yield two gateways with a pool and a cloud, both a fake one that answers at once."""
    redis = RedisServer()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-")))
        databases = Databases(folder)
        stack.callback(databases.close)
        dsn = stack.enter_context(databases.database("postgresql", migrated=False))
        stack.callback(redis.close)
        redis.start()
        fleet = Fleet(stack.enter_context(counting_provider()), redis, dsn, folder, [])
        for name in ("one", "two"):
            fleet.gateways.append(stack.enter_context(fleet.another(name)))
        fleet.credit("rich", _RICH_NANO)
        fleet.credit("lender", _PLACES * PAID_NANO)
        yield fleet


def _seconds(happens: Callable[[], bool], since_s: float | None = None) -> float:
    """Return how long it takes until it happens, from now or from a moment of the monotonic clock on."""
    began_s = time.monotonic() if since_s is None else since_s
    until(lambda: happens() or None, _NEVER_S)
    return time.monotonic() - began_s


def _leads(gateway: Gateway) -> bool:
    return "\nmillrace_ledger_leader 1" in gateway.http().get("/metrics").text


def _revoked_s(here: Gateway, there: Gateway) -> float:
    key = order(here, "POST", "keys", {"name": "revoked", "user": "owner", "lanes": ["pool"]})
    until(lambda: ask(there, key["api_key"], FREE).status == 200 or None)
    order(here, "DELETE", f"keys/{key['key_id']}")
    return _seconds(lambda: ask(there, key["api_key"], FREE).status == 401)


def _limited_s(here: Gateway, there: Gateway) -> float:
    key = order(here, "POST", "keys", {"name": "limited", "user": "owner", "lanes": ["pool"]})
    until(lambda: ask(there, key["api_key"], FREE).status == 200 or None)
    limit = {"scope": f"key:{key['key_id']}", "measure": "requests", "amount": "1", "span": "day"}
    order(here, "PUT", "quotas", limit)
    return _seconds(lambda: ask(there, key["api_key"], FREE).status == 429)


def _address(gateway: Gateway) -> tuple[str, int]:
    host, _, port = gateway.root.removeprefix("http://").partition(":")
    return host, int(port)


def _head(gateway: Gateway, path: str, more: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.api_key}\r\n{more}\r\n"
    return head.encode()


def _beside_slow_clients_s(gateway: Gateway) -> float:
    head, ended = _head(gateway, "/v1/chat/completions", "content-length: 100\r\n"), threading.Event()
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(_address(gateway))) for _ in range(_SLOW)]

        def drip() -> None:
            for at in itertools.count():
                for one in made:
                    with suppress(OSError):
                        one.sendall(head[at % len(head) :][:1])
                if ended.wait(0.5):
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            began_s = time.monotonic()
            for _ in range(_REQUESTS):
                assert ask(gateway, gateway.api_key, FREE).status == 200
            return time.monotonic() - began_s
        finally:
            ended.set()
            dripping.join()


def _form_s(gateway: Gateway, form: bytes) -> float:
    more = f"connection: close\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {len(form)}\r\n"
    began_s = time.monotonic()
    with socket.create_connection(_address(gateway), timeout=_NEVER_S) as made:
        with suppress(OSError):
            made.sendall(_head(gateway, "/v1/audio/transcriptions", more) + form)
        with suppress(ConnectionResetError):
            while made.recv(2**16):
                pass
    return time.monotonic() - began_s


def _hang_ups_s(fleet: Fleet, gateway: Gateway) -> float:
    """Return how long the provider goes on with requests whose callers are gone."""
    fleet.provider.hold()
    try:
        body = b'{"model": "free", "messages": [{"role": "user", "content": "%d"}], "temperature": 1}'
        made = []
        for number in range(_HANG_UPS):
            content = body % number
            made.append(socket.create_connection(_address(gateway)))
            made[-1].sendall(
                _head(gateway, "/v1/chat/completions", f"content-length: {len(content)}\r\n") + content
            )
        until(lambda: fleet.provider.at_once == _HANG_UPS or None)
        for one in made:
            one.close()
        return _seconds(lambda: fleet.provider.at_once == 0)
    finally:
        fleet.provider.release()


def _frozen(fleet: Fleet, gateway: Gateway) -> dict[str, float]:
    """Return the longest of some requests of each kind while the database answers nothing."""
    key = new_key(gateway, "rich")
    # A key that was just made is looked up again once its change has been seen.
    time.sleep(3 * LOOK_EVERY_S)
    until(lambda: (ask(gateway, key, FREE).status, ask(gateway, key, PAID).status) == (200, 200) or None)
    longest = {FROZEN_FREE: 0.0, FROZEN_PAID: 0.0}
    with frozen(fleet.dsn):
        ends_s = time.monotonic() + 8
        while time.monotonic() < ends_s:
            for name, model in ((FROZEN_FREE, FREE), (FROZEN_PAID, PAID)):
                began_s = time.monotonic()
                assert ask(gateway, key, model).status == (200 if model == FREE else 503)
                longest[name] = max(longest[name], time.monotonic() - began_s)
    until(lambda: ask(gateway, key, PAID).status == 200 or None, _NEVER_S)
    return longest


def _killed(fleet: Fleet, doomed: Gateway, survivor: Gateway) -> dict[str, float]:
    """Kill the leader of the ledger while it answers requests that have all of a key's places and credits."""
    places = new_key(survivor, "ann", [{"measure": "concurrency", "amount": str(_PLACES)}])
    rich, lender = new_key(survivor, "rich"), new_key(survivor, "lender")
    until(lambda: ask(survivor, rich, PAID).status == 200 or None)
    fleet.provider.hold()
    with ThreadPoolExecutor() as threads:
        asking = [
            threads.submit(lambda key, model: asyncio.run(crowd([doomed], key, _PLACES, model)), key, model)
            for key, model in ((places, FREE), (lender, PAID))
        ]
        until(lambda: fleet.provider.at_once == 2 * _PLACES or None)
        doomed.process.kill()
        killed_s = time.monotonic()
        for each in asking:
            each.result()
        fleet.provider.release()
        looks = {
            PLACES: threads.submit(_seconds, lambda: ask(survivor, places, FREE).status == 200, killed_s),
            LEADER: threads.submit(_seconds, lambda: ask(survivor, rich, PAID).status == 200, killed_s),
            CREDITS: threads.submit(_seconds, lambda: ask(survivor, lender, PAID).status == 200, killed_s),
        }
        return {name: look.result() for name, look in looks.items()}


def _second_signal_s(fleet: Fleet, gateway: Gateway) -> float:
    fleet.provider.hold()
    try:
        with ThreadPoolExecutor() as threads:
            threads.submit(lambda: asyncio.run(crowd([gateway], gateway.api_key, 1, FREE)))
            until(lambda: fleet.provider.at_once == 1 or None)
            gateway.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            gateway.process.send_signal(signal.SIGINT)
            began_s = time.monotonic()
            gateway.process.wait(_NEVER_S)
            return time.monotonic() - began_s
    finally:
        fleet.provider.release()
