"""Errors in Ollama's format: the status, and one sentence."""

import msgspec

from runtime.http.api_error import ApiError


def error_body(error: ApiError) -> bytes:
    return msgspec.json.encode({"error": error.message})


def error_event(error: ApiError) -> bytes:
    return error_body(error) + b"\n"
