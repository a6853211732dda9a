"""millrace.toml of a gateway under test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gateway.api.conftest import Served


@contextmanager
def settings_file(served: Served, text: str = "") -> Iterator[Path]:
    """millrace.toml of a gateway, gone at the end; other tests read it, too."""
    file: Path = served.services.settings.data_dir / "millrace.toml"
    if text:
        file.write_text(text)
    yield file
    file.unlink(missing_ok=True)
