"""Chunks that buyers get from the own gateway's: text and calls unchanged, and nothing about the backend."""

from typing import Any

import msgspec
import pytest

from market.protocol.counting.answer import AnswerSoFar
from market.protocol.sealing.stream import PIECE_BYTES_MAX
from market.seller.chunks import ChunkBroken, Chunks, UpstreamError, encoded

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": "b"}'}}
SECRETS = {
    "system_fingerprint": "fp_secret",
    "provider": "secret",
    "x": {"path": "/secret"},
    "usage": {"x": "secret"},
}


def read(delta: dict[str, Any], finish: str | None = None, **more: Any) -> list[dict[str, Any]]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "secret": 1}
    data = msgspec.json.encode({"id": "secret", "model": "secret", "choices": [choice], **SECRETS, **more})
    return Chunks("chat", "chatcmpl-1", "test/demo", 5).read(data)


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant", "content": "Hello"},
        {"role": "assistant", "content": ""},
        {"reasoning_content": "thought", "content": "said"},
        {"reasoning": "thought"},
        {"refusal": "no"},
        {"tool_calls": [CALL, CALL | {"index": 1}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 50_000}}]},
        {"function_call": {"name": "look", "arguments": "{}"}},
        {"content": "\u00e9" * 100_000},
    ],
)
def test_says_the_same_and_nothing_else(delta: dict[str, Any]) -> None:
    theirs, ours = AnswerSoFar("0" * 64), AnswerSoFar("0" * 64)
    theirs.add({"choices": [{"index": 0, "delta": delta}]})
    for chunk in read(delta, "stop"):
        data = encoded(chunk)
        assert len(data) < PIECE_BYTES_MAX
        assert b"secret" not in data
        ours.add(msgspec.json.decode(data))
    assert ours.transcript() == theirs.transcript()
    assert ours.finish_reasons == {0: "stop"}


def test_what_is_no_chunk() -> None:
    chunks = Chunks("chat", "chatcmpl-1", "test/demo", 5)
    wrong_indexes = b'{"choices": [{"index": true}]}', b'{"choices": [{"index": 999}]}'
    for broken in (b"", b"[]", b"nonsense", b"[" * 100_000, b'{"x": "\xff"}', *wrong_indexes):
        with pytest.raises(ChunkBroken):
            chunks.read(broken)
    for silent in (b"{}", b'{"choices": []}', b'{"choices": [1, {"delta": {"content": ["x"]}}]}'):
        assert chunks.read(silent) == []
    with pytest.raises(UpstreamError) as found:
        chunks.read(b'{"error": {"code": "preempted", "message": "secret"}}')
    assert found.value.code == "preempted"
