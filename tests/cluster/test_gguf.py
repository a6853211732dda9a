"""GGUF files hold the original model's weights, tokens and texts. Damaged files are refused by name."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from torch import Tensor, nn

from cluster.compute.gguf_blocks import FOUR_BITS, dequantise, int4_groups
from cluster.compute.stage_model import load_stage_model
from cluster.errors import ModelInvalid, ModelNotFound, ModelUnsupported
from cluster.generation import ChatPrompt, TextPrompt
from cluster.models.gguf_file import BLOCK_SIZES
from cluster.models.gguf_tokenizer import tokenizer_files
from cluster.models.manifest import Manifest, TensorEntry
from cluster.models.model_card import Precision, read_card
from cluster.models.stage_spec import StageSpec
from cluster.models.store import find_model, load_manifest, model_name, open_source, read_part
from cluster.models.text import TextCodec
from tests.cluster.ggufs import write_gguf
from tests.clusters import DEMO_MODEL

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
TOKENS = torch.arange(60) * 11
TEXTS = [
    "The river  runs\n\n to it's 1234 ends.",
    "é 世界 \N{GRINNING FACE}",
    "<|im_start|>user\nHi<|im_end|>",
    " a\tb  ",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def tiny(family: str) -> nn.Module:
    torch.manual_seed(1)
    configs: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SHAPE, tie_word_embeddings=False)
        ),
        "llama3": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **SHAPE, max_position_embeddings=16384, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True
            )
        ),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True)
        ),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**SHAPE, **EXPERTS, tie_word_embeddings=False)
        ),
        "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(
                **SHAPE, **EXPERTS, head_dim=32, moe_intermediate_size=64, norm_topk_prob=True
            )
        ),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=False)
        ),
    }
    model = configs[family]().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # New norms and biases are ones and zeros, which would hide errors.
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return model


def load(path: Path, cache: Path) -> tuple[Path, Manifest]:
    folder = find_model(str(path), cache / "models")
    return folder, load_manifest(folder, model_name(str(path)), cache / "manifests")


@pytest.mark.parametrize("kind", [kind for kind in BLOCK_SIZES if kind not in ("F32", "F16")])
def test_values_are_the_reference_readers(kind: str) -> None:
    values, block_bytes = BLOCK_SIZES[kind]
    raw = np.random.default_rng(7).integers(0, 256, (6, 512 // values * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # Random bytes as half-precision scales can be infinite or NaN.
        expected = dequantize(raw, GGMLQuantizationType[kind])
    entry = TensorEntry("f", kind, (6, 512), 0, raw.size, "")
    assert np.array_equal(dequantise(entry, bytearray(raw.tobytes())).float().numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("kind", FOUR_BITS)
def test_four_bits_stay_as_they_are(kind: str) -> None:
    values, block_bytes = BLOCK_SIZES[kind]
    raw = np.random.default_rng(7).integers(0, 64, (8, 512 // values * block_bytes), dtype=np.uint8)
    entry = TensorEntry("f", kind, (8, 512), 0, raw.size, "", rope_heads=2)
    quants, scales, minimums = int4_groups(entry, bytearray(raw.tobytes()))
    scaled = quants.view(8, 16, 32) * scales[..., None] - minimums[..., None]
    torch.testing.assert_close(
        scaled.view(8, 512), dequantise(entry, bytearray(raw.tobytes())), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "F32"),
        ("llama3", "Q8_0"),
        ("llama", "Q4_0"),
        ("qwen2", "F16"),
        ("qwen2", "Q4_K"),
        ("qwen3", "BF16"),
        ("qwen3", "Q4_0"),
    ],
)
def test_a_model_computes_as_before(family: str, kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """transformers with our config.json and our tensors computes as with the weights that were written."""
    reference = tiny(family)
    held = write_gguf(tmp_path / "tiny.gguf", reference, tokenizer, kind)
    reference.load_state_dict(held, strict=False)
    folder, manifest = load(tmp_path / "tiny.gguf", tmp_path)
    read = open_source(str(folder))
    again = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**manifest.config), dtype=torch.float32
    ).eval()
    tensors = {name: dequantise(entry, read(entry)).float() for name, entry in manifest.tensors.items()}
    missing, unexpected = again.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if "lm_head.weight" not in held else [])
    with torch.inference_mode():
        assert torch.equal(again(TOKENS[None]).logits, reference(TOKENS[None]).logits)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama3", "Q4_0"), ("qwen2", "Q4_K"), ("qwen3", "Q8_0"), ("mixtral", "F32"), ("qwen3_moe", "F32")],
)
def test_stages_compute_it(
    family: str, kind: str, tokenizer: Tokenizer, tmp_path: Path, device: torch.device
) -> None:
    reference: Any = tiny(family)
    held = write_gguf(tmp_path / "tiny.gguf", reference, tokenizer, kind)
    reference.load_state_dict(held, strict=False)
    folder, manifest = load(tmp_path / "tiny.gguf", tmp_path)
    with torch.inference_mode():
        expected = reference(TOKENS[None]).logits[0]
        exact = through_stages(folder, manifest, "fp32", device)
        torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-4)
        rounded = through_stages(folder, manifest, "int4", device)
    if kind in FOUR_BITS:
        # The file's own quants stay, so the error is only bf16 arithmetic, far below that of rounding again.
        assert (rounded - expected).norm() / expected.norm() < 0.03


def through_stages(folder: Path, manifest: Manifest, precision: Precision, device: torch.device) -> Tensor:
    """Return the logits behind every token, from two stages."""
    card = read_card(manifest.config)
    rows = TOKENS.to(device)
    for index in (0, 1):
        spec = StageSpec(
            index=index,
            stages=2,
            first_layer=index,
            end_layer=index + 1,
            precision=precision,
            context_tokens=128,
            kv_blocks=2,
            slots=1,
        )
        stage = load_stage_model(card, manifest, spec, open_source(str(folder)), device)
        rows = rows if index else stage.embed(rows.int())
        rows = stage.forward(rows, stage.batch([0], [0], [len(TOKENS)]))
    return stage.logits(rows).cpu()


def test_split_files_and_folders(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = tiny("qwen3")
    (tmp_path / "split").mkdir()
    write_gguf(tmp_path / "one.gguf", model, tokenizer, "Q8_0")
    write_gguf(tmp_path / "split" / "many.gguf", model, tokenizer, "Q8_0", split_tensors=5)
    shards = sorted((tmp_path / "split").glob("*.gguf"))
    assert len(shards) > 2
    _, whole = load(tmp_path / "one.gguf", tmp_path)
    for reference in (shards[1], tmp_path / "split"):
        folder, manifest = load(reference, tmp_path)
        assert manifest.digest == whole.digest
    entry = manifest.tensors["model.layers.1.mlp.down_proj.weight"]
    part, size_bytes = read_part(folder, manifest, entry.sha256, 0)
    assert size_bytes == entry.size_bytes == 256 * 512 // 32 * 34
    assert bytes(open_source(str(folder))(entry)) == part
    assert model_name(str(shards[0])) == "many"
    shards[2].unlink()
    with pytest.raises(ModelNotFound, match=shards[2].name):
        load(shards[0], tmp_path)
    (tmp_path / "split" / "other.gguf").write_bytes(b"")
    with pytest.raises((ModelInvalid, ModelNotFound)):
        load(tmp_path / "split", tmp_path)


def test_texts_are_tokenized_as_before(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny("qwen3"), tokenizer, "Q8_0")
    folder, _ = load(tmp_path / "tiny.gguf", tmp_path)
    codec = TextCodec(folder)
    for text in TEXTS:
        ids = codec.encode(TextPrompt(text))
        assert codec.decode(ids) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    plain = "The river runs to its end, 1 2 3"
    assert codec.encode(TextPrompt(plain)) == tokenizer.encode(plain).ids
    assert codec.encode(ChatPrompt([{"role": "user", "content": "Hi"}])) == tokenizer.encode("<|im_start|>Hi").ids
    assert codec.end_token_ids == {0, 2}


def test_sentence_piece_by_scores() -> None:
    original = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    original.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    original.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *byte_pieces])
    texts = ["The river runs to its end and the end runs to the river, again and again.", "a gateway to anywhere"]
    original.train_from_iterator(texts * 3, trainer)
    vocabulary = sorted(original.get_vocab(), key=original.get_vocab().__getitem__)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.scores": [-float(at) for at in range(len(vocabulary))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(vocabulary) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    files = tokenizer_files(metadata, len(vocabulary))
    again = Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    for text in (*texts, "another river, ending 界", "  two"):
        assert again.encode(text).ids == [1, *original.encode(text, add_special_tokens=False).ids]
        assert again.decode(again.encode(text).ids) == text
    assert files["generation_config.json"] == {"eos_token_id": [2]}


@pytest.fixture(scope="module")
def qwen3_file(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file, for copies to damage."""
    path = tmp_path_factory.mktemp("sound") / "tiny.gguf"
    write_gguf(path, tiny("qwen3"), tokenizer, "F32")
    return path


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def set_type(path: Path, number: int) -> None:
    place = b"blk.0.attn_q_norm.weight" + struct.pack("<IQ", 1, 32)
    rewrite(path, place + struct.pack("<I", 0), place + struct.pack("<I", number))


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), ModelInvalid, "truncated: .* ends at byte"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), ModelInvalid, "truncated within its header"),
        (lambda path: path.write_bytes(b"GGUF"), ModelInvalid, "truncated: 4 bytes"),
        (lambda path: rewrite(path, b"GGUF", b"FUGG"), ModelInvalid, "not a GGUF file"),
        (lambda path: rewrite(path, b"GGUF\x03", b"GGUF\x01"), ModelUnsupported, "version 1"),
        (lambda path: rewrite(path, b"\x05\x00\x00\x00\x00\x00\x00\x00qwen3", b"\x05" + b"\x00" * 7 + b"mamba"),
         ModelUnsupported, "'mamba'"),
        (lambda path: rewrite(path, b"blk.1.ffn_up.weight", b"blk.1.ffn_xy.weight"), ModelUnsupported, "ffn_xy"),
        (lambda path: rewrite(path, b"qwen3.context_length", b"qwen3.context_lengtx"), ModelInvalid, "length"),
        (lambda path: rewrite(path, b"qwen2", b"qwert"), ModelUnsupported, "tokenizer.ggml.pre 'qwert'"),
        (lambda path: set_type(path, 16), ModelUnsupported, "IQ2_XXS"),
        (lambda path: set_type(path, 99), ModelUnsupported, "number 99"),
        (lambda path: set_type(path, 12), ModelInvalid, "cannot be Q4_K"),
    ],
)  # fmt: skip
def test_damage_is_named(
    damage: Callable[[Path], object], error: type[Exception], message: str, qwen3_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    shutil.copyfile(qwen3_file, path)
    damage(path)
    with pytest.raises(error, match=message):
        load(path, tmp_path)


def test_any_truncation_in_the_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ModelInvalid):
            find_model(str(path), tmp_path / "cache")
