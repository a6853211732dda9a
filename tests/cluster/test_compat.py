"""The compatibility path: transformers' own tokens from transformers' own layers, spread over stages of ours."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from cluster.compute.stage_model import StageModel, load_stage_model
from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models import compat_card
from cluster.models.compat_card import stage_names
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import ModelCard, Precision, read_card
from cluster.models.stage_spec import StageSpec
from cluster.models.store import open_source

CPU = torch.device("cpu")
TOKENS = 16
SHAPE = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {**MLA, "rope_parameters": {**YARN, "rope_theta": 10000.0}},
    "deepseek_v2": {**MLA, "topk_method": "greedy", "q_lora_rank": None},
    "glm4": {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True},
    "olmo2": {},
    "cohere2": {"tie_word_embeddings": True, "sliding_window": 8, "logit_scale": 0.5},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "stablelm": {"use_qkv_bias": True},
    "opt": {"num_key_value_heads": 4, "ffn_dim": 96, "word_embed_proj_dim": 64, "tie_word_embeddings": True},
}
FAMILIES = {kind: SHAPE | settings for kind, settings in FAMILIES.items()}
PROMPTS = [[5 + at * 7 % 150 for at in range(29)], [9, 8, 7, 3, 33]]


def make(kind: str, folder: Path) -> Any:
    """A tiny random checkpoint with every parameter away from its start value."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**FAMILIES[kind])
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model


def spec(card: ModelCard, stage: int, stages: int, precision: Precision = "fp32") -> StageSpec:
    return StageSpec(
        index=stage,
        stages=stages,
        first_layer=card.layers * stage // stages,
        end_layer=card.layers * (stage + 1) // stages,
        precision=precision,
        context_tokens=128,
        kv_blocks=8,
        slots=2,
    )


def load(
    folder: Path, manifest: Manifest, stages: int, precision: Precision = "fp32", device: torch.device = CPU
) -> list[StageModel]:
    card = read_card(manifest.config)
    return [
        load_stage_model(card, manifest, spec(card, stage, stages, precision), open_source(str(folder)), device)
        for stage in range(stages)
    ]


def run(
    stage_models: list[StageModel],
    slots: list[int],
    starts: list[int],
    tokens: list[list[int]],
    device: torch.device = CPU,
) -> Tensor:
    """Return the log-probabilities behind every row of one step through all stages."""
    token_ids = torch.tensor([token for group in tokens for token in group], dtype=torch.int32)
    rows = stage_models[0].embed(token_ids.to(device))
    for stage in stage_models:
        rows = stage.forward(rows, stage.batch(slots, starts, [len(group) for group in tokens]))
    return stage_models[-1].logits(rows).float().log_softmax(-1).cpu()


def generate(stage_models: list[StageModel], device: torch.device) -> tuple[list[list[int]], list[Tensor]]:
    """Return greedy tokens and their log-probabilities, from one prompt in chunks and both in every later step."""
    run(stage_models, [0], [0], [PROMPTS[0][:13]], device)
    first = run(stage_models, [0, 1], [13, 0], [PROMPTS[0][13:], PROMPTS[1]], device)
    latest = [first[len(PROMPTS[0]) - 14], first[-1]]
    tokens: list[list[int]] = [[], []]
    seen: list[list[Tensor]] = [[], []]
    for at in range(TOKENS):
        for sequence in (0, 1):
            tokens[sequence].append(int(latest[sequence].argmax()))
            seen[sequence].append(latest[sequence])
        starts = [len(prompt) + at for prompt in PROMPTS]
        latest = list(run(stage_models, [0, 1], starts, [[tokens[0][-1]], [tokens[1][-1]]], device))
    return tokens, [torch.stack(rows) for rows in seen]


@pytest.mark.parametrize("kind", FAMILIES)
def test_tokens_are_the_references(kind: str, tmp_path: Path, stage_device: torch.device) -> None:
    """Each token is the reference's likeliest after the previous ones, so together they are its greedy output."""
    reference = make(kind, tmp_path)
    manifest = read_manifest(tmp_path, kind)
    for stages in (1, 2, 3):
        with torch.inference_mode():
            tokens, logprobs = generate(load(tmp_path, manifest, stages, device=stage_device), stage_device)
            for prompt, found, rows in zip(PROMPTS, tokens, logprobs, strict=True):
                logits = reference(torch.tensor([prompt + found])).logits[0, len(prompt) - 1 : -1]
                assert found == logits.argmax(-1).tolist()
                assert len(found) == TOKENS
                torch.testing.assert_close(rows, logits.log_softmax(-1), rtol=0, atol=1e-4)


# Settings of a family that are made small; with latents, head_dim has another meaning.
ANY: dict[str, Any] = {
    **SHAPE,
    **MLA,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "sliding_window": 16,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
}


def small(kind: str) -> dict[str, Any]:
    known = transformers.CONFIG_MAPPING[kind]().to_dict()
    aliases = getattr(transformers.CONFIG_MAPPING[kind], "attribute_map", {})
    settings = {name: value for name, value in ANY.items() if name in known or name in aliases}
    if "kv_lora_rank" in known:
        settings["num_key_value_heads"] = 4
        settings.pop("head_dim", None)
    if types := known.get("layer_types"):
        settings["layer_types"] = (list(dict.fromkeys(types)) * 3)[:3]
    return settings


@pytest.mark.slow
@pytest.mark.parametrize("kind", compat_card.FAMILIES)
def test_every_family_that_is_claimed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage_device: torch.device
) -> None:
    monkeypatch.setitem(FAMILIES, kind, small(kind))
    reference = make(kind, tmp_path)
    manifest = read_manifest(tmp_path, kind)
    card = compat_card.compat_card(manifest.config)
    values = sum(p.numel() for name, p in reference.named_parameters() if compat_card.layer_of(name) is not None)
    assert sum(cost.values for cost in card.layer_costs) > 0.95 * values
    with torch.inference_mode():
        wanted = reference(torch.tensor([PROMPTS[0]])).logits[0].log_softmax(-1)
        for stages in (1, 2, 3):
            stage_models = load(tmp_path, manifest, stages, device=stage_device)
            begin = run(stage_models, [0], [0], [PROMPTS[0][:17]], stage_device)
            middle = run(stage_models, [1, 0], [0, 17], [PROMPTS[1], PROMPTS[0][17:28]], stage_device)
            end = run(stage_models, [0], [28], [PROMPTS[0][28:]], stage_device)
            found = torch.cat((begin, middle[len(PROMPTS[1]) :], end))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4"])
def test_eight_bits_stay_close(kind: str, tmp_path: Path, device: torch.device) -> None:
    make(kind, tmp_path)
    manifest = read_manifest(tmp_path, kind)
    with torch.inference_mode():
        exact = run(load(tmp_path, manifest, 2), [0], [0], [PROMPTS[0]])
        rounded = run(load(tmp_path, manifest, 2, "int8", device), [0], [0], [PROMPTS[0]], device)
    assert (rounded - exact).norm() / exact.norm() < 0.05


def test_latents_are_what_is_cached(tmp_path: Path) -> None:
    make("deepseek_v3", tmp_path)
    card = read_card(read_manifest(tmp_path, "m").config)
    shape = card.kv_shape(0)
    assert (shape.kv_heads, shape.key_dim + shape.value_dim) == (1, 16 + 8)


def test_a_stage_reads_its_own_layers(tmp_path: Path) -> None:
    make("olmo2", tmp_path)
    manifest = read_manifest(tmp_path, "m")
    card = read_card(manifest.config)
    per_stage = [set(stage_names(card, spec(card, at, 3), manifest.tensors)) for at in range(3)]
    assert set.union(*per_stage) == set(manifest.tensors)
    for at, names in enumerate(per_stage):
        assert {name.split(".")[2] for name in names if ".layers." in name} == {str(at)}
        assert ("model.embed_tokens.weight" in names, "lm_head.weight" in names) == (at == 0, at == 2)


def test_kimi_is_deepseek_in_eight_bit_blocks(tmp_path: Path) -> None:
    """The published files: another name, remote code that is never run, and FP8 with a scale per block."""
    reference = make("deepseek_v3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "kimi_k2",
        "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    changed: dict[str, Tensor] = {}
    for name in [name for name in tensors if ".mlp." in name and name.endswith("_proj.weight")]:
        scale = torch.tensor([[tensors[name].abs().max() / 448]])
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale
        changed[name] = tensors[name].float() * scale
    save_file(tensors, tmp_path / "model.safetensors")
    folder = tmp_path / "reference"
    folder.mkdir()
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith("_scale_inv")}
    save_file({**plain, **changed}, folder / "model.safetensors", metadata={"format": "pt"})
    reference.config.save_pretrained(folder)
    wanted = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        found = run(load(tmp_path, read_manifest(tmp_path, "k"), 2), [0], [0], [PROMPTS[0]])
        expected = wanted(torch.tensor([PROMPTS[0]])).logits[0].log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' means state"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "type 'linear_attention'"),
        ({"model_type": "jamba", "mamba_d_state": 16}, "'mamba_d_state' means state"),
        ({"model_type": "a_new_one"}, "'a_new_one' is not supported"),
        ({"model_type": "olmo2", "quantization_config": {"quant_method": "awq"}}, "'awq' is not supported"),
    ],
)
def test_the_unsupported_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupported, match=message):
        read_card({**SHAPE, **config})


def test_a_checkpoint_without_a_tensor_is_named(tmp_path: Path) -> None:
    make("olmo2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelInvalid, match=r"up_proj"):
        load(tmp_path, read_manifest(tmp_path, "m"), 1)
    save_file({name: t for name, t in tensors.items() if ".layers.2." not in name}, tmp_path / "model.safetensors")
    with pytest.raises(ModelInvalid, match="tensors of layer 2"):
        load(tmp_path, read_manifest(tmp_path, "m"), 1)


def test_without_transformers_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    make("olmo2", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelUnsupported, match=r"pip install 'transformers>="):
        load(tmp_path, read_manifest(tmp_path, "m"), 1)
