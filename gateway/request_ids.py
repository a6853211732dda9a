"""The id of one request: in its answer's header, in its log lines, in its row of the request log."""

import secrets

HEADER = b"x-request-id"


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"
