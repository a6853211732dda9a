"""Loads OpenTelemetry where the settings want it, and nowhere else: it is an extra, and takes its time."""

from typing import TYPE_CHECKING

from gateway.settings import SettingsInvalid
from gateway.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from gateway.observability.telemetry import Telemetry


def open_telemetry(settings: TelemetrySettings) -> "Telemetry":
    """Raises SettingsInvalid where the extra is not installed."""
    try:
        from gateway.observability.telemetry import Telemetry
    except ModuleNotFoundError as error:
        raise SettingsInvalid(f"telemetry.otlp_endpoint: needs `pip install millrace[otel]` ({error})") from None
    return Telemetry(settings)
