"""Where a gateway takes the events of others that share its ledger. One that shares none listens nowhere."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from gateway.app import open_services
from gateway.billing.shared import address_towards, open_shared
from gateway.settings import DatabaseSettings, LedgerSettings, Settings
from runtime.data_folder import DataFolder
from runtime.database import open_engine, write_sessions
from runtime.settings import SettingsInvalid
from tests.databases import Databases


@pytest.mark.parametrize(
    ("dsn", "address"),
    [
        ("postgresql:///ledger", "127.0.0.1"),
        ("postgresql:///ledger?host=/run/postgresql", "127.0.0.1"),
        ("postgresql://u:p@127.0.0.2/ledger", "127.0.0.1"),
        ("postgresql://u:p@[::1]:5433/ledger", "::1"),
        ("postgresql://u:p@nowhere.invalid/ledger", "127.0.0.1"),
    ],
)
def test_the_address_is_the_one_towards_the_database(dsn: str, address: str) -> None:
    assert address_towards(make_url(dsn)) == address


def test_a_ledger_in_a_file_is_not_shared(tmp_path: Path) -> None:
    for dsn in (None, f"sqlite:///{tmp_path}/ledger.db"):
        database = DatabaseSettings.model_validate({"dsn": dsn})
        write = write_sessions(open_engine(f"sqlite:///{tmp_path}/ledger.db"))
        assert open_shared(Settings(data_dir=tmp_path, database=database), write) is None
    found_here = "[n for n in sys.modules if 'accounting.replication' in n]"
    program = f"import sys, gateway.app, gateway.cli.store; print({found_here})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_named(databases: Databases, tmp_path: Path) -> None:
    with databases.database("postgresql") as dsn, socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(
            data_dir=tmp_path,
            database=DatabaseSettings.model_validate({"dsn": dsn}),
            ledger=LedgerSettings(host="127.0.0.1", port=taken.getsockname()[1]),
        )
        folder = DataFolder(tmp_path)
        folder.prepare()
        with pytest.raises(SettingsInvalid, match=r"ledger\.port"):
            async with open_services(settings, folder):
                pass
