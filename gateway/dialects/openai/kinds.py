"""The kinds of requests, and their paths at OpenAI-compatible servers."""

from typing import Literal, get_args

Kind = Literal[
    "chat",
    "completion",
    "embedding",
    "rerank",
    "moderation",
    "image",
    "image_edit",
    "image_variation",
    "speech",
    "transcription",
    "translation",
]

KINDS: frozenset[Kind] = frozenset(get_args(Kind))
GENERATES: frozenset[Kind] = frozenset(("chat", "completion"))

PATHS: dict[Kind, str] = {
    "chat": "/chat/completions",
    "completion": "/completions",
    "embedding": "/embeddings",
    "rerank": "/rerank",
    "moderation": "/moderations",
    "image": "/images/generations",
    "image_edit": "/images/edits",
    "image_variation": "/images/variations",
    "speech": "/audio/speech",
    "transcription": "/audio/transcriptions",
    "translation": "/audio/translations",
}
"""Return the path behind a base URL that ends in /v1."""

DOES: dict[Kind, str] = {
    "chat": "chat",
    "completion": "complete text",
    "embedding": "embed",
    "rerank": "rerank",
    "moderation": "moderate",
    "image": "make pictures",
    "image_edit": "edit pictures",
    "image_variation": "vary pictures",
    "speech": "speak",
    "transcription": "transcribe",
    "translation": "translate speech",
}
"""Return what a model of this kind can do, for error messages."""
