"""Errors as the page's script shows them: a sentence, a remedy, and the field to correct. Pure."""

import json
from typing import Any

from runtime.http.api_error import ApiError

_BALANCE, _MODELS = "/console/balance", "/console/models"

# The page's field for each field of the request.
_FIELDS = {
    "model": "model",
    "messages": "prompt",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "millrace.lane": "lane",
}
# By error code if it is more specific than the status. With the page that helps, if there is one.
_REMEDIES: dict[str | int, tuple[str, str]] = {
    "insufficient_credit": ("Buy credits on the Balance page, or choose a free lane.", _BALANCE),
    "budget_exceeded": ("Ask an admin to raise the limit, or choose a free lane.", ""),
    "budget_unavailable": ("Try again shortly, or choose a free lane.", ""),
    "payments_frozen": ("Ask an instance admin for the reason, or choose a free lane.", ""),
    "model_not_found": ("Choose another model. The Models page lists those available to you.", _MODELS),
    "context_length_exceeded": ("Shorten the prompt, or start a new conversation.", ""),
    400: ("Correct the named field and send the message again.", ""),
    402: ("Buy credits on the Balance page, or choose a free lane.", _BALANCE),
    403: ("Choose another model or lane, or ask an admin for access.", ""),
    413: ("Send less text, or start a new conversation.", ""),
    429: ("Wait a moment and send the message again.", ""),
    500: ("Send the message again. An admin can find the reason in the log.", ""),
    502: ("The backend failed. Send the message again, or check its state on the Models page.", _MODELS),
    503: ("Try again later, or choose another lane.", ""),
    504: ("Try again later, or choose another lane.", ""),
}
# Routing's own errors already contain a remedy.
_SAYS_IT = "To fix this:"


def problem_of(error: ApiError, pages: frozenset[str]) -> dict[str, Any]:
    """Return an error in OpenAI's format plus a remedy. Links lead only to `pages`."""
    remedy, href = _REMEDIES.get(error.code or "", ("", "")) if error.code else ("", "")
    if not remedy:
        remedy, href = _REMEDIES.get(error.status, ("Send the message again.", ""))
    retry_after_s = next((value.decode() for name, value in error.headers if name == b"retry-after"), "")
    if retry_after_s and error.status == 429:
        remedy = f"Send the message again in {retry_after_s} s."
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
    """Return the form's errors, by field."""
    names = ", ".join(errors)
    message = f"Invalid fields: {names}."
    error = {"message": message, "type": "invalid_request_error", "code": "invalid_value", "fields": errors}
    return {"error": error | {"param": next(iter(errors)), "status": 400, "remedy": "", "href": ""}}


def as_json(problem: dict[str, Any]) -> bytes:
    return json.dumps(problem, ensure_ascii=False).encode(errors="replace")


def _field_of(param: str | None) -> str:
    if param is None:
        return ""
    return _FIELDS.get(param) or _FIELDS.get(param.partition("[")[0].partition(".")[0], "")
