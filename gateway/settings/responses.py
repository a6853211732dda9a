"""Retention of stored answers of the Responses API."""

from pydantic import Field

from gateway.settings.base import Privacy
from runtime.settings import Section


class ResponsesSettings(Section):
    store: bool = Field(True, description="Whether responses are stored if their callers request it.")
    privacy_max: Privacy = Field("internal", description="Maximum label of stored responses.")
    days_max: int = Field(30, ge=1, description="How long a response is stored, in days.")
    per_user_max: int = Field(
        10_000, ge=1, description="Maximum number of stored responses of one user; the oldest are deleted."
    )
    bytes_max: int = Field(
        2**30, ge=2**20, description="Maximum size of stored responses, in bytes; the oldest are deleted."
    )
