"""Validate every line of an input before the first request is sent; pure except for reading the file."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.batches.lines import (
    CUSTOM_ID_CHARS,
    Item,
    LineInvalid,
    as_data,
    raw_lines,
    read_line,
    read_question,
)

ERRORS_MAX = 100
# Parsing in a thread delays the event loop, so it sleeps this long after this many lines.
_REST_S = 0.002
_REST_EVERY = 50


@dataclass
class Findings:
    """`total` counts valid lines; `models` are those that they name."""

    total: int = 0
    models: set[str] = field(default_factory=set)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> str | None:
        """Return the one model of all lines, if there is only one."""
        return next(iter(self.models)) if len(self.models) == 1 else None


@dataclass(frozen=True)
class Rules:
    """The rules for a batch's lines. `may_use` tells whether its key may use a model."""

    endpoint: str
    lines_max: int
    body_bytes_max: int
    may_use: Callable[[str], bool]


def examine(path: Path, rules: Rules, goes_on: Callable[[], bool]) -> Findings:
    """Return the first ERRORS_MAX errors of a file; stop early when `goes_on` returns false."""
    findings = Findings()
    seen: set[str] = set()
    for count, (line, raw) in enumerate(_lines(path, rules), 1):
        if not goes_on() or len(findings.errors) >= ERRORS_MAX:
            return findings
        if count > rules.lines_max:
            text = f"The file has more than {rules.lines_max} requests, this gateway's limit. Split it."
            findings.errors.append(as_data(LineInvalid("too_many_tasks", text), line))
            return findings
        try:
            findings.models.add(_examine_line(line, raw, rules, seen))
            findings.total += 1
        except LineInvalid as error:
            findings.errors.append(as_data(error, line))
        if count % _REST_EVERY == 0:
            time.sleep(_REST_S)
    if not findings.total and not findings.errors:
        findings.errors.append(as_data(LineInvalid("empty_file", "The input file has no requests."), None))
    return findings


def _lines(path: Path, rules: Rules) -> Iterator[tuple[int, bytes]]:
    return raw_lines(path, rules.body_bytes_max)


def _examine_line(line: int, raw: bytes, rules: Rules, seen: set[str]) -> str:
    """Return the model that the line names. Raises LineInvalid."""
    item, method, url = read_line(line, raw, rules.body_bytes_max)
    _check_id(item, seen)
    if method != "POST":
        raise LineInvalid("invalid_method", f"method must be POST, not {method[:20]!r}", "method")
    if url != rules.endpoint:
        text = f"url must be the batch's endpoint {rules.endpoint}, not {url[:80]!r}"
        raise LineInvalid("mismatched_url", text, "url")
    if len(item.body) > rules.body_bytes_max:
        text = f"body is larger than this gateway's limit of {rules.body_bytes_max} bytes"
        raise LineInvalid("line_too_long", text, "body")
    model = read_question(rules.endpoint, item.body).request.model
    if not rules.may_use(model):
        raise LineInvalid("model_not_allowed", f"body.model: this key may not use {model!r}", "body.model")
    return model


def _check_id(item: Item, seen: set[str]) -> None:
    custom_id = item.custom_id
    if not 1 <= len(custom_id) <= CUSTOM_ID_CHARS:
        text = f"custom_id must have 1 to {CUSTOM_ID_CHARS} characters"
        raise LineInvalid("invalid_custom_id", text, "custom_id")
    if custom_id in seen:
        text = f"custom_id {custom_id[:80]!r} is already used by an earlier line"
        raise LineInvalid("duplicate_custom_id", text, "custom_id")
    seen.add(custom_id)
