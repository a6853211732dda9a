"""What GET /v1/models says of a model."""

from typing import Any


def model_entry(name: str, lanes: list[str], **known: Any) -> dict[str, Any]:
    """One element of the list; `known` goes into the `millrace` object as far as it is known."""
    extra = {"lanes": lanes} | {field: value for field, value in known.items() if value is not None}
    return {"id": name, "object": "model", "created": 0, "owned_by": "millrace", "millrace": extra}
