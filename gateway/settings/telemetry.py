"""Export of traces and metrics in OpenTelemetry's GenAI conventions."""

from pydantic import Field

from runtime.settings import Section


class TelemetrySettings(Section):
    otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="Base URL of an OTLP/HTTP collector (http://localhost:4318); none by default.",
    )
    service_name: str = Field("millrace", description="Name of this gateway in traces.")
