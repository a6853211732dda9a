"""Model files: found, pulled, hashed, fetched. Damaged or unsupported ones are refused by name."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.compute.weights import load_stage
from cluster.errors import ModelInvalid, ModelNotFound, ModelUnsupported, WeightsMismatch
from cluster.models.checkpoint import check_tensors, stage_tensor_names
from cluster.models.manifest import Manifest, TensorEntry, read_manifest
from cluster.models.model_card import read_card
from cluster.models.stage_spec import StageSpec
from cluster.models.store import ModelCopy, find_model, load_manifest, model_name, open_source, read_part
from tests.clusters import DEMO_MODEL
from tests.fakes.hub import Hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a copy of the model to damage."""
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "copy"))


def spec(manifest: Manifest, stage: int, stages: int) -> StageSpec:
    layers = read_card(manifest.config).layers
    return StageSpec(
        index=stage,
        stages=stages,
        first_layer=layers * stage // stages,
        end_layer=layers * (stage + 1) // stages,
        precision="fp32",
        context_tokens=64,
        kv_blocks=4,
        slots=2,
    )


def edit_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_stage_reads_its_own_tensors_only(model: Path) -> None:
    manifest = read_manifest(model, "m")
    card = read_card(manifest.config)
    for stages in (1, 2, 3):
        per_stage = [set(stage_tensor_names(card, spec(manifest, at, stages))) for at in range(stages)]
        assert set.union(*per_stage) == set(manifest.tensors)
        layers = [{name for name in names if ".layers." in name} for names in per_stage]
        assert sum(map(len, layers)) == len(set.union(*layers))
    read: list[str] = []
    source = open_source(str(model))

    def noting(entry: TensorEntry) -> bytearray:
        read.append(entry.sha256)
        return source(entry)

    load_stage(card, manifest, spec(manifest, 1, 2), noting, torch.device("cpu"))
    expected = [manifest.tensors[name].sha256 for name in stage_tensor_names(card, spec(manifest, 1, 2))]
    assert sorted(read) == sorted(expected)


def test_other_weights_are_refused_by_name(model: Path) -> None:
    manifest = read_manifest(model, "m")
    entry = manifest.tensors["model.layers.0.mlp.up_proj.weight"]
    content = bytearray((model / entry.file).read_bytes())
    content[entry.offset + 1] ^= 1
    (model / entry.file).write_bytes(content)
    with pytest.raises(WeightsMismatch, match=r"layers\.0\.mlp\.up_proj"):
        load_stage(
            read_card(manifest.config),
            manifest,
            spec(manifest, 0, 2),
            open_source(str(model)),
            torch.device("cpu"),
        )
    assert read_manifest(model, "m").digest != manifest.digest


def truncate(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\x00\x01")


def garble_header(model: Path) -> None:
    content = bytearray((model / "model.safetensors").read_bytes())
    content[8:40] = b"#" * 32
    (model / "model.safetensors").write_bytes(content)


def lie_about_size(model: Path) -> None:
    content = (2**62).to_bytes(8, "little") + b"{}"
    (model / "model.safetensors").write_bytes(content)


def drop_tensor(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, model / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (truncate, ModelInvalid, "truncated"),
        (cut_header, ModelInvalid, "truncated"),
        (garble_header, ModelInvalid, "header cannot be read"),
        (lie_about_size, ModelInvalid, "truncated or not a safetensors"),
        (drop_tensor, ModelInvalid, r"lacks the tensor model\.norm\.weight"),
        (lambda model: (model / "model.safetensors").unlink(), ModelNotFound, "no .safetensors"),
        (lambda model: (model / "tokenizer.json").unlink(), ModelNotFound, "no tokenizer"),
        (lambda model: (model / "config.json").unlink(), ModelNotFound, r"no config\.json"),
        (lambda model: (model / "config.json").write_text("{"), ModelInvalid, r"config\.json"),
        (lambda model: edit_config(model, model_type="mamba"), ModelUnsupported, "'mamba' is not supported"),
        (lambda model: edit_config(model, hidden_size=-3), ModelInvalid, "hidden_size must be a positive"),
        (lambda model: edit_config(model, hidden_size=3), ModelInvalid, "shape"),
        (lambda model: edit_config(model, num_key_value_heads=3), ModelInvalid, "grouped-query"),
        (
            lambda model: edit_config(model, rope_parameters={"rope_type": "longrope"}),
            ModelUnsupported,
            "longrope",
        ),
        (lambda model: edit_config(model, quantization_config={"bits": 4}), ModelUnsupported, "quantization"),
    ],
)
def test_damage_is_named(
    model: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    damage(model)
    with pytest.raises(error, match=message):
        manifest = read_manifest(model, "m")
        check_tensors(read_card(manifest.config), manifest)


def test_the_manifest_is_hashed_once(model: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    first = load_manifest(model, "m", tmp_path / "cache", lambda done, _: steps.append(done))
    hashed = len(steps)
    assert hashed == len(first.tensors)
    assert load_manifest(model, "m", tmp_path / "cache", lambda done, _: steps.append(done)) == first
    assert len(steps) == hashed
    (model / "generation_config.json").touch()
    load_manifest(model, "m", tmp_path / "cache", lambda done, _: steps.append(done))
    assert len(steps) == 2 * hashed


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content[:-9] + bytes(9)])
def test_a_damaged_manifest_is_made_again(model: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    first = load_manifest(model, "m", tmp_path / "cache")
    [kept] = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert load_manifest(model, "m", tmp_path / "cache") == first
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("dtype", ["U8", "I64", "F8_E4M3"])
def test_weights_of_a_type_that_means_something_else_are_refused_by_name(model: Path, dtype: str) -> None:
    manifest = read_manifest(model, "m")
    name = "model.layers.0.mlp.up_proj.weight"
    wrong = msgspec.structs.replace(manifest.tensors[name], dtype=dtype)
    damaged = msgspec.structs.replace(manifest, tensors=manifest.tensors | {name: wrong})
    with pytest.raises(ModelInvalid, match=rf"layers\.0\.mlp\.up_proj\.weight has dtype {dtype}"):
        check_tensors(read_card(manifest.config), damaged)


def test_a_copy_is_fetched_in_parts_and_resumed(model: Path, tmp_path: Path) -> None:
    manifest = read_manifest(model, "m")
    name, entry = max(manifest.tensors.items(), key=lambda item: item[1].size_bytes)
    copy = ModelCopy(tmp_path / "node", manifest)
    assert entry.sha256 in copy.missing([name])
    first, total = read_part(model, manifest, entry.sha256, 0)
    assert not copy.append(entry.sha256, first[:1000], total)
    resumed = ModelCopy(tmp_path / "node", manifest)
    assert resumed.offset(entry.sha256) == 1000
    while not resumed.append(
        entry.sha256, read_part(model, manifest, entry.sha256, resumed.offset(entry.sha256))[0], total
    ):
        pass
    assert entry.sha256 not in resumed.missing([name])
    content = open_source(str(resumed.folder))(entry)
    assert hashlib.sha256(content).hexdigest() == entry.sha256


def test_wrong_parts_are_thrown_away(model: Path, tmp_path: Path) -> None:
    manifest = read_manifest(model, "m")
    sha256 = manifest.files["config.json"].sha256
    copy = ModelCopy(tmp_path / "node", manifest)
    with pytest.raises(WeightsMismatch):
        copy.append(sha256, b"x" * 10, 10)
    assert copy.offset(sha256) == 0
    with pytest.raises(ModelNotFound):
        read_part(model, manifest, "0" * 64, 0)
    with pytest.raises(ModelNotFound, match="none at"):
        read_part(model, manifest, sha256, 10**9)


def test_a_whole_part_that_was_never_checked_is_finished(model: Path, tmp_path: Path) -> None:
    """The machine was switched off between the last byte and the hash check, so no byte is missing."""
    manifest = read_manifest(model, "m")
    sha256 = manifest.files["config.json"].sha256
    copy = ModelCopy(tmp_path / "node", manifest)
    whole, total = read_part(model, manifest, sha256, 0)
    assert not copy.append(sha256, whole[:-1], total)
    part = next(path for path in (copy.folder / "tensors").iterdir() if path.suffix == ".part")
    part.write_bytes(whole)
    rest, _ = read_part(model, manifest, sha256, copy.offset(sha256))
    assert rest == b""
    assert copy.append(sha256, rest, total)
    assert sha256 not in copy.missing([])


def test_a_pull_resumes_and_refuses_early(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    # So that a break after three million bytes leaves something to resume.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1_000_000)
    mamba = Path(shutil.copytree(model, tmp_path / "mamba"))
    edit_config(mamba, model_type="mamba")
    with Hub({"acme/tiny": model, "acme/mamba": mamba}, break_after_bytes=3_000_000) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        told: list[tuple[int, int]] = []
        folder = find_model("acme/tiny", tmp_path / "cache", progress=lambda *said: told.append(said))
        # All but config.json, which came first. Bytes from before the break are not counted twice.
        rest = [path.stat().st_size for path in folder.iterdir() if path.name != "config.json"]
        assert told[-1][0] == told[-1][1] == sum(rest)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        size_bytes = (model / "model.safetensors").stat().st_size
        assert ("model.safetensors", "bytes=3000000-") in hub.ranges
        assert hub.sent_bytes["model.safetensors"] == size_bytes
        assert read_manifest(folder, "m").digest == read_manifest(model, "m").digest
        with pytest.raises(ModelUnsupported, match="mamba"):
            find_model("acme/mamba", tmp_path / "cache")
        with pytest.raises(ModelNotFound, match="acme/nothing"):
            find_model("acme/nothing", tmp_path / "cache")
    # The hub is unreachable, but the pulled model still loads.
    assert find_model("acme/tiny", tmp_path / "cache") == folder


def test_names() -> None:
    assert model_name(str(DEMO_MODEL)) == DEMO_MODEL.name
    assert model_name("acme/tiny@v2") == "acme/tiny"
    with pytest.raises(ModelNotFound, match="neither a folder nor"):
        find_model("no-such-thing", Path("/tmp"))
