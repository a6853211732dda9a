"""Files that are no batches, orders that cannot be carried out, uploads that end in the middle."""

import json
import socket
from typing import Any

import openai
import pytest

from tests.gateway.batches.mill import MODEL
from tests.gateway.batches.working import CHAT, begin, ended, jsonl, line, lines
from tests.gateways import Gateway, until

GOOD = line("good", "text")


def without(name: str) -> dict[str, Any]:
    return {field: value for field, value in GOOD.items() if field != name}


@pytest.mark.parametrize(
    ("content", "code", "at", "param"),
    [
        (b"", "empty_file", None, None),
        (b"\n\n  \n", "empty_file", None, None),
        (jsonl([GOOD]) + b"garbage\n", "invalid_json_line", 2, None),
        (jsonl([GOOD]) + b"\xff\xfe\x00\n", "invalid_json_line", 2, None),
        (jsonl([GOOD])[:-1].replace(b"text", b"t\xff"), "invalid_json", 1, "body"),
        (b"[" * 15000, "invalid_request", 1, None),
        (b"[1]\n", "invalid_request", 1, None),
        (jsonl([GOOD, {}, GOOD]), "duplicate_custom_id", 3, "custom_id"),
        (jsonl([without("custom_id")]), "invalid_request", 1, None),
        (jsonl([GOOD | {"custom_id": ""}]), "invalid_custom_id", 1, "custom_id"),
        (jsonl([GOOD | {"custom_id": 7}]), "invalid_request", 1, None),
        (jsonl([GOOD | {"method": "GET"}]), "invalid_method", 1, "method"),
        (jsonl([GOOD | {"url": "/v1/embeddings"}]), "mismatched_url", 1, "url"),
        (jsonl([GOOD | {"body": {"model": MODEL}}]), "missing_required_parameter", 1, "body.messages"),
        (jsonl([GOOD | {"body": "text"}]), "invalid_value", 1, "body"),
        (jsonl([line("a", "text", stream=True)]), "invalid_value", 1, "body.stream"),
        (jsonl([line("a", "text", temperature=9)]), "invalid_value", 1, "body.temperature"),
        (jsonl([GOOD, line("long", "x" * 30_000)]), "line_too_long", 2, None),
        (lines(["x"] * 301), "too_many_tasks", 301, None),
    ],
)
def test_a_bad_file_is_told_by_its_line(
    gateway: Gateway, content: bytes, code: str, at: int | None, param: str | None
) -> None:
    client = gateway.openai()
    batch = ended(client, begin(client, content).id)
    assert batch.status == "failed"
    assert batch.output_file_id is None
    assert batch.errors
    assert batch.errors.data
    found = [(error.code, error.line, error.param) for error in batch.errors.data]
    assert (code, at, param) in found
    assert all(error.message for error in batch.errors.data)


def test_errors_are_bounded(gateway: Gateway) -> None:
    client = gateway.openai()
    batch = ended(client, begin(client, b"x\n" * 5000).id)
    assert batch.errors
    assert batch.errors.data
    assert len(batch.errors.data) == 100


def test_a_model_that_the_key_may_not_use(gateway: Gateway) -> None:
    words = ("key", "create", "narrow", "--lanes", "pool", "--models", "other", "--json")
    client = gateway.openai(str(json.loads(gateway.cli(*words))["api_key"]))
    batch = ended(client, begin(client, jsonl([GOOD])).id)
    assert batch.errors
    assert batch.errors.data
    assert batch.errors.data[0].code == "model_not_allowed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(at): "x" for at in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"input_file_id": "a\x00"}, "input_file_id"),
        ({"input_file_id": "../../secret"}, "input_file_id"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"nothing": 1}, None),
    ],
)
def test_a_bad_order_names_its_field(gateway: Gateway, body: dict[str, Any], param: str | None) -> None:
    order = {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h"}
    with gateway.http() as client:
        answer = client.post("/v1/batches", json=order | body)
    assert answer.status_code in (400, 404)
    assert str(answer.json()["error"]["param"] or "").startswith(param or "")
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("form", "file", "param"),
    [
        ({}, True, "purpose"),
        ({"purpose": "fine-tune"}, True, "purpose"),
        ({"purpose": "batch_output"}, True, "purpose"),
        ({"purpose": "batch"}, False, "file"),
        ({"purpose": "batch" * 2000}, True, "purpose"),
        ({"purpose": "batch", "expires_after[anchor]": "now"}, True, "expires_after.anchor"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, True, "expires_after.seconds"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "-1"},
            True,
            "expires_after.seconds",
        ),
    ],
)
def test_a_bad_form_names_its_field(gateway: Gateway, form: dict[str, str], file: bool, param: str) -> None:
    files = {"file": ("a.jsonl", b"{}")} if file else {"other": (None, b"")}
    with gateway.http() as client:
        answer = client.post("/v1/files", data=form, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_names_with_paths_stay_names(gateway: Gateway) -> None:
    file = gateway.openai().files.create(file=("../../../etc/pass\x01wd", b"{}"), purpose="batch")
    assert file.filename == "passwd" or "/" not in file.filename


def test_what_is_too_large_is_refused_and_gone(gateway: Gateway) -> None:
    client = gateway.openai()
    before = sorted(gateway.folder.glob("files/*/*"))
    with pytest.raises(openai.APIStatusError) as refused:
        client.files.create(file=("big", b"x" * 400_000), purpose="batch")
    assert refused.value.status_code == 413
    with gateway.http() as http:
        for content_type in ("text/plain", "multipart/form-data", "multipart/form-data; boundary=a"):
            answer = http.post("/v1/files", content=b"--b\r\nnonsense", headers={"content-type": content_type})
            assert answer.status_code == 400
    assert sorted(gateway.folder.glob("files/*/*")) == before


def test_an_upload_that_breaks_off_leaves_nothing(gateway: Gateway) -> None:
    before = sorted(gateway.folder.glob("files/*/*"))
    host, port = gateway.root.removeprefix("http://").split(":")
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.api_key}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 90000\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsome'
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"x" * 50_000)
    gateway.openai().files.list()
    until(lambda: sorted(gateway.folder.glob("files/*/*")) == before or None, 60)


@pytest.mark.parametrize(
    "path", ["/v1/files/%00", "/v1/batches/%00", "/v1/files/x/content", "/v1/batches?after=x"]
)
def test_ids_that_are_none(gateway: Gateway, path: str) -> None:
    with gateway.http() as client:
        assert client.get(path).status_code in (400, 404)
        assert client.get(path, headers={"authorization": "Bearer wrong"}).status_code in (400, 401)
