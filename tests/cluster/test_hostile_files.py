"""Model files with forged headers are refused by name when they are read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ModelInvalid
from cluster.models.manifest import read_manifest
from cluster.models.model_card import read_card
from tests.clusters import DEMO_MODEL

DEEP = "[" * 100_000 + "]" * 100_000


def tensor(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"a": tensor(0, 64, [64]), "b": tensor(32, 96, [64])}, "overlap"),
        ({"a": tensor(0, 64, [64]), "b": tensor(0, 64, [64])}, "overlap"),
        ({"a": tensor(-8, 56, [64])}, "a"),
        ({"a": tensor(0, 64, [-8, -8])}, "negative"),
        ({"a": {"dtype": "U8", "shape": [1e400], "data_offsets": [0, 1]}}, "cannot be read"),
    ],
    ids=["overlap", "the same bytes", "before the data", "negative extents", "an extent without end"],
)
def test_tensors_that_cannot_be_are_refused(tmp_path: Path, header: dict[str, Any], said: str) -> None:
    folder = copied(tmp_path)
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(256))
    with pytest.raises(ModelInvalid, match=said):
        read_manifest(folder, "m")


def _deep_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": ' + DEEP + "}")


def _deep_header(folder: Path) -> None:
    raw = ('{"a": ' + DEEP + "}").encode()
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(64))


@pytest.mark.parametrize("spoil", [_deep_config, _deep_header])
def test_files_nested_without_end_are_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = copied(tmp_path)
    spoil(folder)
    with pytest.raises(ModelInvalid):
        read_manifest(folder, "m")


@pytest.mark.parametrize("setting", ["rms_norm_eps", "hidden_size", "rope_theta"])
def test_numbers_without_end_are_refused_by_their_name(setting: str) -> None:
    config = json.loads((DEMO_MODEL / "config.json").read_bytes()) | {"rope_parameters": None, setting: 10**400}
    with pytest.raises(ModelInvalid, match=setting):
        read_card(config)


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))
