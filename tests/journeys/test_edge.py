"""What the HTTP edge owes every answer and every caller, with no model and few places."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.gateways import Gateway, running_gateway

PLACES = 4


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {"SERVER__REQUESTS_MAX": str(PLACES)}
    with running_gateway(tmp_path_factory.mktemp("edge"), model=None, settings=settings) as running:
        running.cli("users", "add", "ann")
        yield running


def key_of(gateway: Gateway, user: str) -> str:
    words = ("key", "create", "test", "--user", user, "--lanes", "cluster", "--json")
    return str(json.loads(gateway.cli(*words))["api_key"])


def ask(gateway: Gateway, key: str, model: str) -> httpx.Response:
    with gateway.http(key) as client:
        messages = [{"role": "user", "content": "Hello"}]
        return client.post("/v1/chat/completions", json={"model": model, "messages": messages})


def overview(gateway: Gateway, key: str) -> str:
    with gateway.http() as client:
        assert client.post("/console/login", data={"key": key}).status_code == 303
        return client.get("/console").text


def test_a_key_sees_its_own_requests_and_the_owners_the_machines_too(edge: Gateway) -> None:
    keys = {"owners": edge.api_key, "anns": key_of(edge, "ann"), "anns-other": key_of(edge, "ann")}
    for name, key in keys.items():
        edge.record(ask(edge, key, f"{name}-model").headers["x-request-id"])
    pages = {name: overview(edge, key) for name, key in keys.items()}
    seen = {name: {other for other in keys if f">{other}-model<" in page} for name, page in pages.items()}
    assert seen == {name: {name} for name in keys}
    assert ['href="/console/cluster"' in page for page in pages.values()] == [True, False, False]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/chat/completions", 400),
        ("GET", "/admin/requests", 403),
        ("GET", "/console", 303),
        ("GET", "/console/login", 200),
        ("GET", "/console/static/console.css", 200),
    ],
)
def test_every_answer_has_an_id(edge: Gateway, method: str, path: str, status: int) -> None:
    with edge.http() as client:
        answer = client.request(method, path)
    assert answer.status_code == status
    assert [name for name, _ in answer.headers.raw].count(b"x-request-id") == 1
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_wrong_parameter_is_named(edge: Gateway) -> None:
    running = DataFolder(edge.folder).read_running()
    assert running
    with edge.http() as client:
        answer = client.get("/admin/requests?limit=many", headers={HEADER: running["admin_token"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "limit"


def test_bodies_that_never_come_take_nobodys_place(edge: Gateway) -> None:
    host, port = edge.root.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {edge.api_key}\r\n"
    stalled = [socket.create_connection((host, int(port))) for _ in range(PLACES * 4)]
    for connection in stalled:
        connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
    # Without a place it would be a 503.
    assert ask(edge, edge.api_key, "none").json()["error"]["code"] == "model_not_found"
    for connection in stalled:
        connection.close()
