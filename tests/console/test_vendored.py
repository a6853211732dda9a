"""What others made and we ship is what they published: every file by its hash, and none beside them."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.console.static_files import ROOT

FOLDERS = [ROOT / "vendor", Path(__file__).parent / "axe"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_vendored_files_are_those_that_were_published(folder: Path) -> None:
    told: dict[str, str] = {}
    for package in json.loads((folder / "vendor.json").read_text()):
        assert package["integrity"].startswith("sha512-")
        assert package["version"]
        assert package["licence"]
        told |= package["files"]
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    del there["vendor.json"]
    assert {name: sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == told
