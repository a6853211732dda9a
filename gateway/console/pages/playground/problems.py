"""What went wrong, as the page's script shows it: a sentence, what helps, and the field to mend. Pure."""

import json
from typing import Any

from gateway.errors import ApiError

_BALANCE, _MODELS = "/console/balance", "/console/models"

# What of the page stands for a field of the request.
_FIELDS = {
    "model": "model",
    "messages": "prompt",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "millrace.lane": "lane",
}
# By code where it says more than the status. With the page that helps, where there is one.
_REMEDIES: dict[str | int, tuple[str, str]] = {
    "insufficient_credit": ("Buy credits on the Balance page, or choose a lane that costs nothing.", _BALANCE),
    "budget_exceeded": ("Have the limit raised, or choose a lane that costs nothing.", ""),
    "budget_unavailable": ("Try again shortly, or choose a lane that costs nothing.", ""),
    "payments_frozen": ("Ask an admin of the house what it is about, or choose a lane that costs nothing.", ""),
    "model_not_found": ("Choose another model; the Models page has all that you may name.", _MODELS),
    "context_length_exceeded": ("Shorten the prompt, or begin a new conversation.", ""),
    400: ("Change what it names and send it again.", ""),
    402: ("Buy credits on the Balance page, or choose a lane that costs nothing.", _BALANCE),
    403: ("Choose another model or lane, or ask an admin whether you may use this one.", ""),
    413: ("Send less text, or begin a new conversation.", ""),
    429: ("Wait a little and send it again.", ""),
    500: ("Send it again; an admin finds the reason in the log.", ""),
    502: ("Send it again: the backend failed. Its state is on the Models page.", _MODELS),
    503: ("Try again later, or choose another lane.", ""),
    504: ("Try again later, or choose another lane.", ""),
}
# Routing's own refusals say themselves what helps.
_SAYS_IT = "What helps:"


def problem_of(error: ApiError, pages: frozenset[str]) -> dict[str, Any]:
    """An error in OpenAI's shape, and besides what helps against it. Only `pages` are led to."""
    remedy, href = _REMEDIES.get(error.code or "", ("", "")) if error.code else ("", "")
    if not remedy:
        remedy, href = _REMEDIES.get(error.status, ("Send it again.", ""))
    retry_after_s = next((value.decode() for name, value in error.headers if name == b"retry-after"), "")
    if retry_after_s and error.status == 429:
        remedy = f"Send it again in {retry_after_s} s."
    if _SAYS_IT in error.message:
        remedy, href = "", ""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "code": error.code,
            "param": error.param,
            "status": error.status,
            "field": _field_of(error.param),
            "remedy": remedy,
            "href": href if href in pages else "",
        }
    }


def wrong_fields(errors: dict[str, str]) -> dict[str, Any]:
    """What is wrong with the form, beside its fields."""
    names = ", ".join(errors)
    message = f"Some of it cannot be sent: {names}."
    error = {"message": message, "type": "invalid_request_error", "code": "invalid_value", "fields": errors}
    return {"error": error | {"param": next(iter(errors)), "status": 400, "remedy": "", "href": ""}}


def as_json(problem: dict[str, Any]) -> bytes:
    return json.dumps(problem, ensure_ascii=False).encode(errors="replace")


def _field_of(param: str | None) -> str:
    if param is None:
        return ""
    return _FIELDS.get(param) or _FIELDS.get(param.partition("[")[0].partition(".")[0], "")
