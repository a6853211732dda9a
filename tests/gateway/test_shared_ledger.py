"""A ledger is shared in PostgreSQL. One in a file is not, and loads nothing of what sharing needs."""

import subprocess
import sys
from pathlib import Path

from gateway.billing.shared import open_shared
from gateway.settings import DatabaseSettings, Settings
from runtime.database import open_engine, write_sessions


def test_a_ledger_in_a_file_is_not_shared(tmp_path: Path) -> None:
    for dsn in (None, f"sqlite:///{tmp_path}/ledger.db"):
        database = DatabaseSettings.model_validate({"dsn": dsn})
        write = write_sessions(open_engine(f"sqlite:///{tmp_path}/ledger.db"))
        assert open_shared(Settings(data_dir=tmp_path, database=database), write) is None
    found_here = "[n for n in sys.modules if 'accounting.replication' in n]"
    program = f"import sys, gateway.app, gateway.cli.store; print({found_here})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"
