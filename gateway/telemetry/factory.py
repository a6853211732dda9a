"""Loads OpenTelemetry only if the settings enable it: it is an optional extra, and slow to import."""

import sys
from typing import TYPE_CHECKING

from gateway.settings.telemetry import TelemetrySettings
from runtime.settings import SettingsInvalid

if TYPE_CHECKING:
    from gateway.telemetry.telemetry import Telemetry


def open_telemetry(settings: TelemetrySettings) -> "Telemetry":
    """Raises SettingsInvalid if the extra is not installed."""
    try:
        from gateway.telemetry.telemetry import Telemetry
    except ModuleNotFoundError as error:
        raise SettingsInvalid(
            f"telemetry.otlp_endpoint: OpenTelemetry is not installed ({error}). Run: {sys.executable} -m "
            "pip install 'opentelemetry-exporter-otlp-proto-http>=1.45' 'opentelemetry-sdk>=1.45'"
        ) from None
    return Telemetry(settings)
