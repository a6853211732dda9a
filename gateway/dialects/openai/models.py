"""A model in the answer to GET /v1/models."""

from typing import Any


def model_entry(name: str, lanes: list[str], **known: Any) -> dict[str, Any]:
    """Return one element of the list; `known` values other than None go into the `millrace` object."""
    extra = {"lanes": lanes} | {field: value for field, value in known.items() if value is not None}
    return {"id": name, "object": "model", "created": 0, "owned_by": "millrace", "millrace": extra}
