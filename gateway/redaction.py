"""Removing what belongs to an operator's machine from texts that callers read."""

import re
from typing import Any

import orjson

# Folders and files of a machine. Routes of this gateway's API and addresses on the web are no paths.
_PATH = re.compile(
    r"(?<![\w/.@-])"
    r"(?!/(?:v1|api|admin|accounting|market|console)/)"
    r"(?:file:/{2})?(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+){2,}[/\\]?"
)
_FILE = re.compile(r"(?<![\w@:-])[\w./\\~-]*\w\.(?:keys?|pem|env|sqlite3?)\b")
# By their last word: `Q4_K_M` is part of a model's name.
_VARIABLE = re.compile(
    r"\b(?:MILLRACE_[A-Z0-9_]+|[A-Z][A-Z0-9_]*_(?:KEYS?|TOKENS?|SECRET|PASSWORD|FOLDER|DIR|FILE|PATH|URL|HOME))\b"
)
_TEXTS = ("message", "detail", "error")


def without_internals(text: str) -> str:
    """The text without paths of files and names of environment variables or keys."""
    return _VARIABLE.sub("[name]", _FILE.sub("[path]", _PATH.sub("[path]", text)))


def error_without_internals(content: bytes) -> bytes:
    """A server's error body, in OpenAI's shape or another, without them; the same bytes if it has none."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return without_internals(content.decode(errors="replace")).encode()
    if not isinstance(body, dict):
        return content
    cleaned = _cleaned(body)
    if isinstance(body.get("error"), dict):
        cleaned["error"] = _cleaned(body["error"])
    return content if cleaned == body else orjson.dumps(cleaned)


def _cleaned(texts: dict[str, Any]) -> dict[str, Any]:
    return texts | {name: without_internals(texts[name]) for name in _TEXTS if isinstance(texts.get(name), str)}
