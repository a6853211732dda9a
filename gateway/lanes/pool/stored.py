"""pool.json in the data directory: backends added and drained while the gateway ran. It holds their keys."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import orjson
import structlog
from msgspec import Struct
from pydantic import SecretStr, ValidationError

from gateway.settings.pool import PoolBackend
from runtime.errors import RequestInvalid
from runtime.files import replace_file

log = structlog.get_logger(__name__)

_BYTES_MAX = 2**20


class _Kept(Struct, frozen=True, forbid_unknown_fields=True):
    backends: list[dict[str, Any]] = []
    drained: list[str] = []


class PoolStore:
    """Read once at the start, and written completely after every change."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[list[PoolBackend], set[str]]:
        """Return the added backends, and the names of all drained ones.

        A file that cannot be parsed is renamed to `.json.broken`.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return [], set()
        except OSError as error:
            log.warning("pool.json not read", reason=error.strerror, remedy="the pool is that of the settings")
            return [], set()
        try:
            if len(content) > _BYTES_MAX:
                raise ValueError(f"longer than {_BYTES_MAX} bytes")
            kept = msgspec.json.decode(content, type=_Kept)
            return [PoolBackend(**entry) for entry in kept.backends], set(kept.drained)
        except (ValueError, TypeError, ValidationError) as error:
            aside = self._path.with_suffix(".json.broken")
            with contextlib.suppress(OSError):
                self._path.replace(aside)
            # Its values may be keys and are not repeated.
            log.error("pool.json is broken", reason=type(error).__name__, reserve_funds=str(aside))
            return [], set()

    def write(self, backends: list[PoolBackend], drained: list[str]) -> None:
        """Write the file. One writer at a time, because the temporary file has a fixed name.

        Raises RequestInvalid if the file would be too large to read again, and OSError; the old file then remains.
        """
        content = orjson.dumps(
            {"backends": [_as_data(backend) for backend in backends], "drained": drained},
            option=orjson.OPT_INDENT_2,
        )
        if len(content) > _BYTES_MAX:
            text = f"models: the added backends exceed {_BYTES_MAX} bytes; list fewer models, or remove a backend"
            raise RequestInvalid(text, param="models", code="invalid_value")
        replace_file(self._path, content)


def _as_data(backend: PoolBackend) -> dict[str, Any]:
    data = backend.model_dump(mode="python", exclude_defaults=True)
    key = data.get("api_key")
    return data | {"api_key": key.get_secret_value()} if isinstance(key, SecretStr) else data
