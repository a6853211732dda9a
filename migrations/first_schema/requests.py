"""The request log, stored responses, files and batches, pauses, and an admin's terms for models."""

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.columns import integer, text, texts, wide


def create() -> None:
    _create_request_log()
    _create_responses()
    _create_batches()
    op.create_table("pause", text("name", key=True), wide("since_ns"), text("actor"))
    op.create_table("model_alias", text("alias", key=True), text("models"), wide("since_ns"), text("actor"))
    op.create_table(
        "model_price",
        text("model", key=True),
        *(wide(name) for name in ("prompt_nano", "completion_nano", "since_ns")),
        text("actor"),
    )


def _create_request_log() -> None:
    op.create_table(
        "request_record",
        text("request_id", key=True),
        wide("started_ns"),
        *texts("key_id", "model", "kind", "lane", "backend", "decision"),
        wide("status"),
        *texts("outcome", "error"),
        wide("prompt_tokens"),
        wide("completion_tokens"),
        wide("ttft_ms", optional=True),
        wide("duration_ms"),
        wide("charge_nano"),
        wide("event_seq", optional=True),
        text("served_model", optional=True),
    )
    op.create_index("ix_request_record_started_ns", "request_record", ["started_ns"])
    op.create_index("ix_request_record_key_id", "request_record", ["key_id", "started_ns"])


def _create_responses() -> None:
    op.create_table(
        "stored_response",
        text("id", key=True),
        text("owner"),
        text("previous_id", optional=True),
        text("privacy"),
        wide("created_ns"),
        wide("size_bytes"),
        *texts("input", "answer"),
    )
    op.create_index("ix_stored_response_created_ns", "stored_response", ["created_ns"])
    op.create_index("ix_stored_response_owner", "stored_response", ["owner", "created_ns"])


def _create_batches() -> None:
    op.create_table(
        "stored_file",
        text("id", key=True),
        *texts("owner", "folder_id", "filename", "purpose"),
        *(wide(name) for name in ("size_bytes", "created_ns", "expires_ns")),
    )
    op.create_index("stored_file_owner", "stored_file", ["owner", "created_ns"])
    op.create_index("stored_file_expires", "stored_file", ["expires_ns"])
    progress = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    op.create_table(
        "batch",
        text("id", key=True),
        *texts("owner", "folder_id", "key_id", "endpoint", "input_file_id", "status"),
        wide("created_ns"),
        wide("expires_ns"),
        text("annotations", optional=True),
        integer("output_lifetime_s", optional=True),
        text("model", optional=True),
        *(integer(name) for name in ("total", "completed", "failed")),
        text("errors", optional=True),
        *(sa.Column(f"{state}_ns", sa.BigInteger) for state in progress),
    )
    op.create_index("batch_owner", "batch", ["owner", "created_ns"])
    op.create_index("batch_status", "batch", ["status", "folder_id"])
    op.create_index("batch_input", "batch", ["input_file_id"])
