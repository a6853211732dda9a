"""Batches from upload to answers, as the official client does it."""

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.gateway.batches.mill import MODEL, Mill
from tests.gateway.batches.working import CHAT, answers, begin, ended, jsonl, line, lines
from tests.gateways import Gateway, until

# Of one backend, unless it is set otherwise.
ABREAST = 4


def test_a_batch_is_answered(gateway: Gateway, mill: Mill) -> None:
    client = gateway.openai()
    file = client.files.create(
        file=("input.jsonl", lines(["one", "two", "wrong"])),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.purpose, file.filename, file.status) == ("batch", "input.jsonl", "processed")
    assert file.expires_at == file.created_at + 3600
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "tests"}
    )
    assert (batch.status, batch.metadata) == ("validating", {"for": "tests"})
    batch = ended(client, batch.id)
    openai.types.Batch.model_validate(batch.to_dict(), strict=True)
    assert batch.status == "completed"
    assert batch.request_counts
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert batch.model == MODEL
    good = {answer["custom_id"]: answer for answer in answers(client, batch.output_file_id)}
    assert sorted(good) == ["id-0", "id-1"]
    response = good["id-1"]["response"]
    assert (response["status_code"], good["id-1"]["error"]) == (200, None)
    assert response["body"]["choices"][0]["message"]["content"] == "You said two"
    assert gateway.record(response["request_id"])["outcome"] == "complete"
    (bad,) = answers(client, batch.error_file_id)
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("id-2", 400)
    assert bad["response"]["body"]["error"]["message"]
    output = client.files.retrieve(str(batch.output_file_id))
    assert output.purpose == "batch_output"
    assert output.bytes == len(client.files.content(output.id).content)


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/completions", {"prompt": "so"}, "text_completion"),
        ("/v1/embeddings", {"input": "so"}, "list"),
        ("/v1/responses", {"input": "so"}, "response"),
    ],
)
def test_every_endpoint(gateway: Gateway, endpoint: str, body: dict[str, str], kind: str) -> None:
    client = gateway.openai()
    request = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
    batch = ended(client, begin(client, jsonl([request]), endpoint).id)
    (answer,) = answers(client, batch.output_file_id)
    assert answer["response"]["body"]["object"] == kind


def test_what_is_busy_for_a_moment_is_asked_again(gateway: Gateway, mill: Mill) -> None:
    client = gateway.openai()
    mill.refusals = 2
    batch = ended(client, begin(client, lines(["again"])).id)
    (answer,) = answers(client, batch.output_file_id)
    assert answer["response"]["request_id"].endswith("_2")


def test_lists_come_in_pages(gateway: Gateway) -> None:
    client = gateway.openai(gateway.new_key("pages", "pool"))
    ids = [begin(client, lines([f"page {at}"])).id for at in range(3)]
    mine = [batch.id for batch in client.batches.list(limit=2) if batch.id in ids]
    assert mine == ids[::-1]
    files = [file.id for file in client.files.list(limit=2, order="asc", purpose="batch")]
    assert len(files) == len(set(files)) >= 3
    for batch_id in ids:
        ended(client, batch_id)


def test_nobody_sees_what_is_anothers(gateway: Gateway) -> None:
    client = gateway.openai()
    batch = ended(client, begin(client, lines(["mine"])).id)
    gateway.cli("users", "add", "bob")
    words = ("key", "create", "other", "--user", "bob", "--lanes", "pool", "--json")
    other = gateway.openai(str(json.loads(gateway.cli(*words))["api_key"]))
    assert batch.output_file_id
    looks: tuple[Callable[[], object], ...] = (
        lambda: other.files.retrieve(batch.input_file_id),
        lambda: other.files.content(str(batch.output_file_id)),
        lambda: other.files.delete(batch.input_file_id),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
        lambda: begin_with(other, batch.input_file_id),
    )
    for look in looks:
        with pytest.raises(openai.NotFoundError):
            look()
    assert [list(other.files.list()), list(other.batches.list())] == [[], []]
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)


def begin_with(client: openai.OpenAI, file_id: str) -> object:
    return client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")


def test_a_cancelled_batch_keeps_what_it_has(gateway: Gateway, mill: Mill) -> None:
    client = gateway.openai()
    mill.holds = True
    batch = begin(client, lines(["first", *(f"wait {at}" for at in range(40))]))
    until(lambda: any(text.startswith("wait") for text in mill.asked) or None)
    with pytest.raises(openai.ConflictError, match=batch.id):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    mill.holds = False
    batch = ended(client, batch.id)
    assert batch.status == "cancelled"
    assert batch.request_counts
    assert batch.request_counts.completed + batch.request_counts.failed == 41
    told = Counter(a["error"]["code"] for a in answers(client, batch.error_file_id))
    assert told == {"batch_cancelled": batch.request_counts.failed}
    assert batch.request_counts.completed >= 1
    with pytest.raises(openai.ConflictError, match="cancelled"):
        client.batches.cancel(batch.id)


def test_the_owner_of_the_machine_sees_and_stops_all(gateway: Gateway, mill: Mill) -> None:
    client = gateway.openai(gateway.new_key("stopped", "pool"))
    mill.holds = True
    batch = begin(client, lines(f"wait {at}" for at in range(10)))
    until(lambda: client.batches.retrieve(batch.id).status == "in_progress" or None)
    rows = json.loads(gateway.cli("batch", "list", "--json"))
    assert {"id": batch.id, "owner": "home/owner", "status": "in_progress"}.items() <= rows[0].items()
    for _ in range(2):
        gateway.cli("batch", "cancel", batch.id)
    mill.holds = False
    entries = json.loads(gateway.cli("audit", "--target", f"batch:{batch.id}", "--json"))
    assert [(entry["action"], entry["after"]) for entry in entries] == [("batch.cancel", {"owner": "home/owner"})]
    assert ended(client, batch.id).status == "cancelled"


def test_a_batch_waits_for_its_keys_limits(gateway: Gateway, mill: Mill) -> None:
    made = json.loads(gateway.cli("key", "create", "one at a time", "--lanes", "pool", "--json"))
    gateway.cli("key", "limit", made["api_key"][:10], "concurrency", "1")
    client = gateway.openai(made["api_key"])
    batch = ended(client, begin(client, lines(f"slowly {at}" for at in range(6))).id)
    assert batch.request_counts
    assert batch.request_counts.completed == 6


def test_a_revoked_key_stops_its_batches(gateway: Gateway, mill: Mill) -> None:
    made = json.loads(gateway.cli("key", "create", "brief", "--lanes", "pool", "--json"))
    client, owner = gateway.openai(made["api_key"]), gateway.openai()
    mill.holds = True
    batch = begin(client, lines(f"wait {at}" for at in range(60)))
    until(lambda: mill.at_once or None)
    gateway.cli("key", "revoke", made["api_key"][:10])
    mill.delay_s = 0.8
    mill.holds = False
    batch = ended(owner, batch.id)
    mill.delay_s = 0.0
    assert batch.status == "failed"
    assert batch.errors
    assert batch.errors.data
    assert batch.errors.data[0].code == "key_not_valid"


def test_users_go_before_batches(gateway: Gateway, mill: Mill) -> None:
    client = gateway.openai()
    mill.delay_s = 0.01
    batch = begin(client, lines(f"batch {at}" for at in range(200)))
    until(lambda: "batch 5" in mill.asked or None)
    mill.holds = True
    users = [f"wait for {name}" for name in ("ann", "bob", "cas", "dan")]
    with ThreadPoolExecutor(len(users)) as pool:
        asking = [pool.submit(ask, gateway, text) for text in users]
        try:
            until(lambda: set(users) <= set(mill.asked) or None)
            since = max(mill.asked.index(text) for text in users)
            # What was under way goes to its end. While four users are there nothing more of the batch begins.
            assert sum(text.startswith("batch") for text in mill.asked[since:]) <= ABREAST
            until(lambda: mill.at_once == len(users) or None)
            settled = len(mill.asked)
            time.sleep(0.8)
            assert len(mill.asked) == settled < 200
        finally:
            mill.holds = False
        assert [answer.result() for answer in asking] == [200] * len(users)
    batch = ended(client, batch.id)
    mill.delay_s = 0.0
    assert batch.request_counts
    assert batch.request_counts.completed == 200
    assert mill.at_once_most <= ABREAST + len(users)


def ask(gateway: Gateway, text: str) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return gateway.http().post(CHAT, json=body).status_code


def test_what_nobody_can_answer_is_told_line_by_line(gateway: Gateway) -> None:
    client = gateway.openai()
    requests = [
        line("unknown", "text", model="nobodys"),
        line("preferences", "text", provider={"max_price": {"prompt": "dear"}}),
    ]
    batch = ended(client, begin(client, jsonl(requests)).id, 60)
    rows = {row["custom_id"]: row["response"] for row in answers(client, batch.error_file_id)}
    assert {name: row["status_code"] for name, row in rows.items()} == {"unknown": 404, "preferences": 400}
    assert rows["preferences"]["body"]["error"]["param"] == "provider.max_price.prompt"
