"""A stored file, and its form in the API."""

import secrets
import time
from dataclasses import dataclass
from typing import Any, Literal

Purpose = Literal["batch", "batch_output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One row of the table, whose columns have the fields' names. Times are nanoseconds since the epoch."""

    id: str
    owner: str
    folder_id: str
    filename: str
    purpose: Purpose
    size_bytes: int
    created_ns: int
    expires_ns: int

    def as_api(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": self.created_ns // 10**9,
            "expires_at": self.expires_ns // 10**9,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_file_id() -> str:
    """Return an id that cannot be guessed; later ones sort after earlier ones."""
    return f"file-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"
