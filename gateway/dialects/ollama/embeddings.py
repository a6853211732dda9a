"""Translates an embedding answer for either of Ollama's two routes."""

import time
from typing import Any

import msgspec
import orjson

from gateway.dialects.base import Question
from gateway.dialects.chat_reader import ANSWER_BYTES_MAX, TOO_DEEP
from gateway.dialects.ollama.errors import error_body
from runtime.http.api_error import ApiError

Json = dict[str, Any]

_NONSENSE = ApiError(502, "The backend answered without embeddings.", "upstream_error", code="upstream_failed")


class EmbedWriter:
    """Buffers the whole answer, because it cannot be streamed. `is_single`: the older route, with one vector."""

    content_type = "application/json"
    keeps_calls = False

    def __init__(self, question: Question, _: str, *, is_single: bool = False) -> None:
        self._model = question.request.model
        self._is_single = is_single
        self._began_ns = time.monotonic_ns()
        self._kept = bytearray()
        self.broken: ApiError | None = None

    def feed(self, chunk: bytes) -> bytes:
        if len(self._kept) <= ANSWER_BYTES_MAX:
            self._kept += chunk
        return b""

    def end(self) -> bytes:
        if self.broken:
            return b""
        try:
            answer = orjson.loads(self._kept)
            vectors = [entry["embedding"] for entry in answer["data"]]
            tokens = (answer.get("usage") or {}).get("prompt_tokens", 0)
        except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
            return self.fail(_NONSENSE)
        try:
            return msgspec.json.encode(self._answer(vectors, tokens))
        except RecursionError:
            return self.fail(TOO_DEEP)

    def _answer(self, vectors: list[Any], tokens: Any) -> Json:
        if self._is_single:
            return {"embedding": vectors[0] if vectors else []}
        took = {"total_duration": time.monotonic_ns() - self._began_ns, "load_duration": 0}
        return {"model": self._model, "embeddings": vectors, **took, "prompt_eval_count": tokens}

    def fail(self, error: ApiError) -> bytes:
        self.broken = error
        return error_body(error)
