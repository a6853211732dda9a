"""What a crash may leave of a batch's files, and what is made of it."""

import json
from pathlib import Path

import pytest

from gateway.batches.batch import Batch
from gateway.batches.file_store import FileStore
from gateway.batches.output import Output
from gateway.batches.reply import BatchReply
from runtime.errors import BodyTooLarge

BATCH = Batch(
    id="batch_0a1b",
    owner="home/ann",
    folder_id="here",
    key_id="key",
    endpoint="/v1/chat/completions",
    input_file_id="file-1",
    status="in_progress",
    created_ns=0,
    expires_ns=1,
)
NAMES = {BATCH.output_id, BATCH.error_id, BATCH.id}


def file_store(folder: Path, bytes_max: int = 10_000) -> FileStore:
    made = FileStore(folder, bytes_max, bytes_max)
    made.open(NAMES)
    return made


@pytest.mark.parametrize("torn", [b"", b"{", b'{"id":"batch_req_0a1b_9","custom', b"\0\0\0\0", b"\xff\n", b"[]\n"])
def test_whole_lines_are_kept(tmp_path: Path, torn: bytes) -> None:
    output = Output(file_store(tmp_path), BATCH)
    for line in (1, 2, 5):
        output.add(line, f"id {line}", BatchReply(200, "req_1", b'{"a": 1}'))
    output.add(3, "id 3", BatchReply(404, "req_3", b"not json"))
    output.add_try(4)
    output.add_try(4)
    output.close()
    path = file_store(tmp_path).path(BATCH.owner, BATCH.output_id)
    with path.open("ab") as file:
        file.write(torn)
    again = Output(file_store(tmp_path), BATCH)
    assert (again.done, again.completed, again.failed, again.attempts[4]) == ({1, 2, 3, 5}, 3, 1, 2)
    again.add(2, "id 2", BatchReply(200))
    again.add(6, "id 6", BatchReply(200, "req_6", b'{"b": 2}'))
    again.close()
    rows = [json.loads(row) for row in path.read_bytes().splitlines()]
    assert [row["custom_id"] for row in rows] == ["id 1", "id 2", "id 5", "id 6"]
    assert rows[0]["response"] == {"status_code": 200, "request_id": "req_1", "body": {"a": 1}}


def test_without_room_nothing_is_half_written(tmp_path: Path) -> None:
    output = Output(file_store(tmp_path, bytes_max=400), BATCH)
    output.add(1, "a", BatchReply(200, "req", b"{}"))
    before = file_store(tmp_path).path(BATCH.owner, BATCH.output_id).read_bytes()
    with pytest.raises(BodyTooLarge):
        output.add(2, "b", BatchReply(200, "req", b'"%s"' % (b"x" * 500)))
    output.close()
    assert file_store(tmp_path).path(BATCH.owner, BATCH.output_id).read_bytes() == before
    assert output.done == {1}
    with pytest.raises(OSError, match="Bad file descriptor"):
        output.add(3, "c", BatchReply(200, "req", b"{}"))


def test_the_last_word_on_a_line_needs_no_room(tmp_path: Path) -> None:
    kept = file_store(tmp_path, bytes_max=0)
    output = Output(kept, BATCH)
    output.add(1, "a", BatchReply(code="batch_expired", message="too late"), is_last_word=True)
    output.close()
    assert output.done == {1}
    assert b"too late" in kept.path(BATCH.owner, BATCH.error_id).read_bytes()


def test_what_nobody_knows_is_swept(tmp_path: Path) -> None:
    first = file_store(tmp_path)
    first.path("ann", "file-lost").write_bytes(b"x" * 50)
    first.path("ann", BATCH.id).write_bytes(b"x" * 70)
    second = file_store(tmp_path, bytes_max=100)
    assert second.folder_id == first.folder_id
    second.take("ann", 30)
    with pytest.raises(BodyTooLarge):
        second.take("ann", 1)
