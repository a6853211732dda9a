"""A web page whose name got this machine's address (DNS rebinding) reads nothing of a gateway on loopback."""

import json
import socket
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from runtime.http.hosts import Hosts
from runtime.http.proxies import TrustedProxies
from tests.gateways import Gateway, running_gateway

EVIL = ("evil.example", "evil.example:8400", "127.0.0.1.evil.example", "localhost.evil.example", "x@evil.example.")
OWN = ("localhost", "LOCALHOST:8400", "127.0.0.1", "127.0.0.2:8400", "[::1]:8400", "a.localhost", "desk:8400")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {"IDENTITY__PUBLIC_URL": "https://mill.example.org"}
    with running_gateway(tmp_path_factory.mktemp("hosts"), model=None, nodes=0, settings=settings) as gateway:
        yield gateway


@pytest.mark.parametrize("path", ["/healthz", "/console/sign-in", "/v1/models", "/v1/chat/completions"])
def test_only_own_names_are_answered(gateway: Gateway, path: str) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    for host in EVIL:
        client = gateway.http()
        refused = client.post(path, json=asked, headers={"host": host}) if "chat" in path else None
        refused = refused or client.get(path, headers={"host": host})
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "host_unknown"), host
    for host in (*OWN, "mill.example.org", socket.gethostname()):
        answered = gateway.http().get(path, headers={"host": host})
        assert answered.status_code != 421, (host, answered.text)


def test_another_name_behind_a_good_one_on_the_same_connection_is_refused(gateway: Gateway) -> None:
    """Heads that repeat are read once: another head is another one."""
    client, body = gateway.http(), json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]})
    statuses = [
        client.post("/v1/chat/completions", content=body, headers={"host": host}).status_code
        for host in ("localhost", "localhost", "evil.example", "localhost")
    ]
    assert statuses == [404, 404, 421, 404]


def test_a_trusted_proxy_may_pass_any_name_on() -> None:
    hosts = Hosts.of("127.0.0.1", None, TrustedProxies([ip_network("127.0.0.1/32")]))
    assert hosts.allows(b"mill.example.org", "127.0.0.1")
    assert not hosts.allows(b"mill.example.org", "127.0.0.2")


@pytest.mark.parametrize("listening", ["0.0.0.0", "::", "10.0.0.7"])
def test_a_gateway_that_others_reach_is_asked_by_any_name(listening: str) -> None:
    assert Hosts.of(listening, None, TrustedProxies(())).allows(b"evil.example", "10.0.0.8")
