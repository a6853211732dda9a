"""The table of hot routes."""

from functools import partial

import gateway.dialects.anthropic.errors as anthropic_errors
import gateway.dialects.ollama.errors as ollama_errors
from gateway.dialects.anthropic.requests import read_messages
from gateway.dialects.anthropic.writer import MessageWriter
from gateway.dialects.base import Question, Route
from gateway.dialects.ollama.embeddings import EmbedWriter
from gateway.dialects.ollama.requests import read_chat, read_embed, read_embeddings, read_generate
from gateway.dialects.ollama.writer import ChatLineWriter, GenerateLineWriter
from gateway.dialects.openai import FORMS, PATHS, Kind, read_form, read_request
from gateway.dialects.responses.conversation import resolve
from gateway.dialects.responses.requests import read_responses
from gateway.dialects.responses.writer import ResponseWriter


def _read(kind: Kind, raw: bytes) -> Question:
    """Return the call for a body that lanes take unchanged."""
    return Question(kind, read_request(kind, raw), raw)


def _read_form(kind: Kind, raw: bytes) -> Question:
    """Return the call for a form whose files lanes take unchanged."""
    request, content_type = read_form(raw)
    return Question(kind, request, raw, content_type)


_ollama_route = partial(Route, error_body=ollama_errors.error_body, error_event=ollama_errors.error_event)

_PLAIN: tuple[Kind, ...] = ("chat", "completion", "embedding", "rerank", "moderation", "image", "speech")
# Cohere's newer client uses another version of the path; rerank servers use none.
_RERANKS = ("/v2/rerank", "/rerank")

ROUTES: tuple[Route, ...] = (
    *(Route(f"/v1{PATHS[kind]}", partial(_read, kind)) for kind in _PLAIN),
    *(Route(f"/v1{PATHS[kind]}", partial(_read_form, kind)) for kind in FORMS),
    *(Route(path, partial(_read, "rerank")) for path in _RERANKS),
    Route("/v1/responses", read_responses, ResponseWriter, resolve=resolve),
    Route(
        "/v1/messages",
        read_messages,
        MessageWriter,
        error_body=anthropic_errors.error_body,
        error_event=anthropic_errors.error_event,
    ),
    _ollama_route("/api/chat", read_chat, ChatLineWriter),
    _ollama_route("/api/generate", read_generate, GenerateLineWriter),
    _ollama_route("/api/embed", read_embed, EmbedWriter),
    _ollama_route("/api/embeddings", read_embeddings, partial(EmbedWriter, is_single=True)),
)
