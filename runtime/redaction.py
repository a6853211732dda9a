"""Removing what belongs to an operator's machine or to the ledger from texts that callers read."""

import re
from typing import Any

import orjson

# Names of files and folders. Routes of this gateway's API and addresses on the web are no paths.
_NOT_A_ROUTE = r"(?!/(?:v1|api|admin|accounting|market|console)/)"
_PART = r"[\w.@+~-]+"
# With spaces, as in `Application Support`, only if a further part follows.
_PARTS = rf"(?:[/\\]+{_PART}(?: {_PART}){{0,3}}(?=[/\\]))*[/\\]+{_PART}[/\\]?"
_PATH = re.compile(
    rf"(?<![\w/.@-]){_NOT_A_ROUTE}(?:"
    rf"[A-Za-z]:{_PARTS}"
    rf"|(?:file:/{{2}})?(?:~|\.{{1,2}}|[A-Za-z]:)?(?:\\\\|(?<!:)//|[/\\]){_PART}{_PARTS}"
    rf"|(?<!:)/\w{_PART}\.[A-Za-z]\w{{0,11}}\b"
    r")"
)
_QUOTED_PATH = re.compile(
    rf"(?<=(['\"`])){_NOT_A_ROUTE}(?:~|[A-Za-z]:)?[/\\][^'\"`\n]{{0,300}}[/\\][^'\"`\n]{{0,300}}(?=\1)"
)
_FILE = re.compile(r"(?<![\w./\\~@:-])[\w./\\~-]*\w\.(?:keys?|pem|env|sqlite3?)\b")
# By their last word: `Q4_K_M` is part of a model's name.
_VARIABLE = re.compile(
    r"\b(?:MILLRACE_[A-Z0-9_]+|[A-Z][A-Z0-9_]*_(?:KEYS?|TOKENS?|SECRET|PASSWORD|FOLDER|DIR|FILE|PATH|URL|HOME))\b"
)
# Account names of the ledger, as in `accounting.chart`, and its unit.
_ACCOUNT = re.compile(
    r"\b(?:(?:user|pool|seller|provider):[\w.@-]+:[\w.@:-]*\w|(?:asset|clearing|income|expense):\w+(?::[\w.@-]*\w)?)"
)
_AMOUNT = re.compile(r"\b\d+ nano(?:-USD)?\b")
_PLACEHOLDERS = (
    (_QUOTED_PATH, "[path]"),
    (_PATH, "[path]"),
    (_FILE, "[path]"),
    (_VARIABLE, "[name]"),
    (_ACCOUNT, "[account]"),
    (_AMOUNT, "[amount]"),
)
_TEXTS = frozenset(("message", "detail", "details", "error", "errors"))
# Names that programs compare.
_WORDS = frozenset(("code", "type", "param"))
_DEPTH_MAX = 16


def without_internals(text: str) -> str:
    """The text without paths of files, names of environment variables or keys, accounts and nano-dollars."""
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return text


def texts_without_internals(value: Any) -> Any:
    """JSON-like data, cleaned to a depth of 16 but for the values of `code`, `type` and `param`."""
    return _cleaned(value, _DEPTH_MAX)


def error_without_internals(content: bytes) -> bytes:
    """A server's error body, in OpenAI's shape or another, without them; the same bytes if it has none."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return without_internals(content.decode(errors="replace")).encode()
    if isinstance(body, dict):
        cleaned = body | {name: texts_without_internals(body[name]) for name in _TEXTS & body.keys()}
    else:
        cleaned = texts_without_internals(body)
    return content if cleaned == body else orjson.dumps(cleaned)


def _cleaned(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return without_internals(value)
    if depth and isinstance(value, dict):
        return {name: each if name in _WORDS else _cleaned(each, depth - 1) for name, each in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_cleaned(each, depth - 1) for each in value]
    return value
