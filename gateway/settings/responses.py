"""How long answers of the Responses API are kept for those who asked for it."""

from pydantic import Field

from gateway.settings.base import Privacy
from runtime.settings import Section


class ResponsesSettings(Section):
    store: bool = Field(True, description="Whether responses are stored when their callers ask for it.")
    privacy_max: Privacy = Field("internal", description="Most private label of which responses are stored.")
    days_max: int = Field(30, ge=1, description="How long a response is stored, in days.")
    per_person_max: int = Field(10_000, ge=1, description="Most responses stored of one person; the oldest go.")
    bytes_max: int = Field(2**30, ge=2**20, description="Most bytes of stored responses; the oldest go.")
