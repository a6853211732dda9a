"""The way from a command to the gateway that runs on the same data folder."""

from typing import Any

from gateway.cli import output
from gateway.data_folder import ADMIN_HEADER, DataFolder
from gateway.settings import Settings

TIMEOUT_S = 30.0


def ask(settings: Settings, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The running gateway's answer; ends the command when there is none."""
    import httpx  # Commands that ask no gateway start twice as fast without.

    running = DataFolder(settings.data_dir).read_running()
    if running is None:
        output.fail(f"no gateway runs on {settings.data_dir}; start one with `millrace up`", output.UNREACHABLE)
    url = running["base_url"].removesuffix("/v1") + path
    try:
        # Not by a proxy of the environment: it would get the token, and finds no way to this machine's loopback.
        response = httpx.request(
            method,
            url,
            headers={ADMIN_HEADER: running["admin_token"]},
            json=body,
            timeout=TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        output.fail(f"the gateway at {url} does not answer: {error}", output.UNREACHABLE)
    if response.status_code != 200:
        output.fail(f"the gateway answered {response.status_code}: {response.text}")
    return response.json()
