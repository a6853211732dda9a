"""The fast path against transformers, family by family: tiny random checkpoints, split into stages, any chunks."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from cluster.compute.stage_model import StageModel, load_stage_model
from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.checkpoint import check_tensors
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import ModelCard, Precision, read_card
from cluster.models.stage_spec import StageSpec
from cluster.models.store import open_source

CPU = torch.device("cpu")
VISION = ("vision", "projector")
CONTEXT, VOCABULARY, LAYERS, TOKENS = 96, 90, 3, 16
PROMPTS = [[(7 * at * at + 3) % VOCABULARY for at in range(41)], [5, 80, 33, 2, 61]]

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}


def rope(kind: str, **settings: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **settings}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=24)
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}


def longrope(original: int) -> dict[str, Any]:
    """Only 12 of a head's 16 values turn."""
    factors = {"short_factor": [1.0 + at / 10 for at in range(6)], "long_factor": [1.0 + at for at in range(6)]}
    settings = rope("longrope", partial_rotary_factor=0.75, original_max_position_embeddings=original, **factors)
    return {**SHAPE, **settings, "original_max_position_embeddings": original}


CASES: dict[str, Callable[[], Any]] = {
    "llama, biases": lambda: transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama, llama3, tied": lambda: transformers.LlamaConfig(**SHAPE | {"tie_word_embeddings": True}, **LLAMA3),
    "llama, linear": lambda: transformers.LlamaConfig(**SHAPE, **rope("linear", factor=4.0)),
    "llama, dynamic": lambda: transformers.LlamaConfig(**SHAPE, **rope("dynamic", factor=4.0)),
    "llama, yarn": lambda: transformers.LlamaConfig(**SHAPE, **YARN),
    "mistral, window": lambda: transformers.MistralConfig(**SHAPE, sliding_window=8),
    "mistral": lambda: transformers.MistralConfig(**SHAPE | {"num_key_value_heads": 4}, sliding_window=None),
    "qwen2, some windows, tied": lambda: transformers.Qwen2Config(
        **SHAPE | {"tie_word_embeddings": True}, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, **EXPERTS, num_experts=6, norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1
    ),
    "qwen3_moe, not normalized": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, **EXPERTS, num_experts=4, norm_topk_prob=False
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "gemma2": lambda: transformers.Gemma2Config(
        **SHAPE | {"tie_word_embeddings": True}, sliding_window=8, query_pre_attn_scalar=24,
        attn_logit_softcapping=3.0, final_logit_softcapping=2.0,
    ),
    "gemma3_text": lambda: gemma3_text(),
    "gemma3": lambda: transformers.Gemma3Config(
        text_config=gemma3_text().to_dict(),
        vision_config={
            "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16,
            "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 28, "patch_size": 14,
        },
        mm_tokens_per_image=1, image_token_index=89, boi_token_index=88, eoi_token_index=87,
        attn_implementation="eager",
    ),
    "phi3, window": lambda: transformers.Phi3Config(
        **SHAPE | {"original_max_position_embeddings": CONTEXT}, sliding_window=30
    ),
    "phi3, short context": lambda: transformers.Phi3Config(**longrope(CONTEXT)),
    "phi3, long context": lambda: transformers.Phi3Config(**longrope(4)),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, layer_types=None,
        **rope("yarn", factor=4.0, truncate=False, original_max_position_embeddings=24),
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=LAYERS, n_head=4, n_positions=CONTEXT, bos_token_id=0,
        eos_token_id=0, attn_implementation="eager",
    ),
}  # fmt: skip


def gemma3_text() -> Any:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    shape = SHAPE | {"tie_word_embeddings": True}
    return transformers.Gemma3TextConfig(
        **shape, sliding_window=8, query_pre_attn_scalar=24, sliding_window_pattern=2, rope_parameters=ropes
    )


@dataclass(frozen=True)
class Case:
    """A family's checkpoint and the model that it was saved from."""

    folder: Path
    model: Any
    manifest: Manifest
    card: ModelCard

    def logits(self, token_ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return self.model(input_ids=torch.tensor([token_ids])).logits[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return save_case(CASES[request.param](), tmp_path_factory.mktemp("model"))


def save_case(config: Any, folder: Path) -> Case:
    build = (
        transformers.Gemma3ForConditionalGeneration
        if config.model_type == "gemma3"
        else transformers.AutoModelForCausalLM.from_config
    )
    torch.manual_seed(5)
    model = build(config).float().eval()
    with torch.no_grad():
        # The initial values of transformers, ones and zeros, would hide missing norms, biases and sinks.
        for parameter in model.parameters():
            spread = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.add_(torch.randn_like(parameter) * spread)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    manifest = read_manifest(folder, "tiny")
    return Case(folder, model, manifest, read_card(manifest.config))


def load_stages(
    case: Case, stages: int, precision: Precision = "fp32", device: torch.device = CPU
) -> list[StageModel]:
    return [
        load_stage_model(
            case.card,
            case.manifest,
            StageSpec(
                index=index,
                stages=stages,
                first_layer=LAYERS * index // stages,
                end_layer=LAYERS * (index + 1) // stages,
                precision=precision,
                context_tokens=CONTEXT,
                kv_blocks=8,
                slots=2,
            ),
            open_source(str(case.folder)),
            device,
        )
        for index in range(stages)
    ]


def run_step(
    stages: list[StageModel], fed: dict[int, list[int]], held: list[int], device: torch.device = CPU
) -> Tensor:
    """Feed slots these tokens behind their content. Return all rows' logits."""
    slots, starts, counts = list(fed), [held[slot] for slot in fed], [len(ids) for ids in fed.values()]
    token_ids = torch.tensor([token for ids in fed.values() for token in ids], dtype=torch.int32)
    rows = stages[0].embed(token_ids.to(device))
    for stage in stages:
        rows = stage.forward(rows, stage.batch(slots, starts, counts))
    for slot, ids in fed.items():
        held[slot] += len(ids)
    return stages[-1].logits(rows).cpu()


def generate(
    stages: list[StageModel], chunk: int, device: torch.device
) -> Iterator[tuple[int, list[int], Tensor]]:
    """Yield greedy continuations of both prompts, the second a step late: (slot, tokens, each one's logits)."""
    sequences, logits = [list(ids) for ids in PROMPTS], [[], []]  # type: tuple[list[list[int]], list[list[Tensor]]]
    held = [0, 0]
    for step in range(200):
        ends = [min(len(ids), at + chunk) for ids, at in zip(sequences, held, strict=True)]
        fed = {
            slot: sequences[slot][held[slot] : ends[slot]]
            for slot in (0, 1)
            if slot <= step and len(logits[slot]) < TOKENS
        }
        if not fed:
            break
        rows = run_step(stages, fed, held, device)
        end = 0
        for slot, ids in fed.items():
            end += len(ids)
            if held[slot] == len(sequences[slot]):
                sequences[slot].append(int(rows[end - 1].argmax()))
                logits[slot].append(rows[end - 1])
    for slot, prompt in enumerate(PROMPTS):
        yield slot, sequences[slot][len(prompt) :], torch.stack(logits[slot])


@pytest.mark.parametrize(("stages", "chunk"), [(1, 64), (3, 7), pytest.param(2, 20, marks=pytest.mark.slow)])
@torch.inference_mode()
def test_tokens_and_logprobs_equal_transformers(
    case: Case, stages: int, chunk: int, stage_device: torch.device
) -> None:
    """Each token is the reference's likeliest after the previous ones, so together they are its greedy output."""
    for slot, tokens, ours in generate(load_stages(case, stages, device=stage_device), chunk, stage_device):
        assert len(tokens) == TOKENS
        theirs = case.logits(PROMPTS[slot] + tokens)[len(PROMPTS[slot]) - 1 : -1]
        assert tokens == theirs.argmax(-1).tolist()
        torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("precision", "error_max"), [("bf16", 0.03), ("fp16", 0.03), ("int8", 0.08), ("int4", 0.6)]
)
@torch.inference_mode()
def test_narrow_precisions_stay_close(
    case: Case, precision: Precision, error_max: float, device: torch.device
) -> None:
    """The median row counts: with tiny differences a mixture sends some rows to another expert."""
    held = [0, 0]
    rows = run_step(load_stages(case, 2, precision, device), dict(enumerate(PROMPTS)), held, device).float()
    expected = torch.cat([case.logits(prompt) for prompt in PROMPTS])
    errors = (rows - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(errors.median()) < error_max


def test_the_card_counts_every_value_of_the_file(case: Case) -> None:
    """The planner reserves exactly the size of a layer."""
    counted = sum(case.card.layer_cost(layer).values for layer in range(LAYERS))
    ends = {"embed_tokens", "wte.", "wpe.", "lm_head", *VISION}
    stored = {
        name: entry.size_bytes // 4
        for name, entry in case.manifest.tensors.items()
        if not any(end in name for end in ends)
    }
    final_norm = next(size for name, size in stored.items() if name.endswith(("model.norm.weight", "ln_f.weight")))
    final_norm *= 2 if case.card.family == "gpt2" else 1
    assert counted + final_norm == sum(stored.values())
    fp32, int8, int4 = (case.card.layer_bytes(precision) for precision in ("fp32", "int8", "int4"))
    assert fp32 == 4 * case.card.layer_cost(0).values
    assert int4 < int8 < fp32 / 2.5
    model_bytes = sum(
        entry.size_bytes for name, entry in case.manifest.tensors.items() if not any(end in name for end in VISION)
    )
    if case.card.tied_embeddings:
        model_bytes += 4 * VOCABULARY * case.card.hidden
    assert case.card.total_bytes("fp32") == pytest.approx(model_bytes, rel=0.001)


def test_mxfp4_blocks_are_the_values_they_stand_for(tmp_path: Path) -> None:
    """The same GPT-OSS twice: experts in blocks, and experts in bf16 with the values of the blocks."""
    case = save_case(CASES["gpt_oss"](), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    plain, packed = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, into, out = tensors[name].shape
        codes = torch.randint(0, 16, (experts, out, into // 32, 32), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 126, (experts, out, into // 32), generator=generator, dtype=torch.uint8)
        values = table[codes.int()] * torch.exp2(scales.float() - 127).unsqueeze(-1)
        plain[name] = values.flatten(2).mT.contiguous()
        del packed[name]
        packed[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        packed[f"{name}_scales"] = scales
    logits = []
    for content, quantization in ((plain, None), (packed, {"quant_method": "mxfp4"})):
        save_file(content, tmp_path / "model.safetensors")
        edited = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": quantization}
        (tmp_path / "config.json").write_text(json.dumps(edited))
        manifest = read_manifest(tmp_path, "tiny")
        read = Case(tmp_path, case.model, manifest, read_card(manifest.config))
        logits.append(run_step(load_stages(read, 1), {0: PROMPTS[0]}, [0, 0]))
    assert torch.equal(*logits)


def test_names_without_a_prefix_are_found(tmp_path: Path) -> None:
    """The first GPT-2 files, and embedding models, begin with the layers."""
    case = save_case(CASES["gpt2"](), tmp_path)
    expected = run_step(load_stages(case, 2), {0: PROMPTS[0]}, [0, 0])
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    assert bare.keys().isdisjoint(tensors)
    save_file(bare, tmp_path / "model.safetensors")
    manifest = read_manifest(tmp_path, "tiny")
    renamed = Case(tmp_path, case.model, manifest, case.card)
    assert torch.equal(run_step(load_stages(renamed, 2), {0: PROMPTS[0]}, [0, 0]), expected)


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("llama, linear", {"model_type": "nonesuch"}, ModelUnsupported, "'nonesuch' is not supported"),
    ("llama, linear", {"hidden_act": "relu2"}, ModelUnsupported, "hidden_act 'relu2'"),
    ("llama, linear", {"partial_rotary_factor": 0.5}, ModelUnsupported, r"partial_rotary_factor 0\.5"),
    ("llama, linear", {"quantization_config": {"quant_method": "gptq"}}, ModelUnsupported, "'gptq'"),
    ("llama, linear", rope("longrope"), ModelUnsupported, "rope type 'longrope'"),
    ("llama, linear", rope("linear", factor="4"), ModelInvalid, "factor must be a number"),
    ("llama, linear", {"vocab_size": None}, ModelInvalid, "vocab_size must be a positive integer"),
    ("qwen3", {"layer_types": ["chunked_attention"] * LAYERS}, ModelUnsupported, "'chunked_attention'"),
    ("qwen3", {"layer_types": ["full_attention"]}, ModelInvalid, "each of the 3 layers"),
    ("gemma2", {"use_bidirectional_attention": True}, ModelUnsupported, "use_bidirectional_attention True"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, ModelUnsupported, "attn_logit_softcapping"),
    ("gemma3", {"text_config": 3}, ModelInvalid, "text_config must be an object"),
    ("phi3, long context", rope("longrope", short_factor=[1.0]), ModelInvalid, "short_factor must hold 8"),
    ("mixtral", {"num_experts_per_tok": 9}, ModelInvalid, "cannot visit 9 of 4 experts"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ModelUnsupported, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"n_embd": -3}, ModelInvalid, "n_embd must be a positive integer"),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_unsupported_settings_are_refused_by_name(
    name: str, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    """config.json alone decides it, before anything else is downloaded."""
    config = json.loads(CASES[name]().to_json_string(use_diff=False)) | settings
    with pytest.raises(error, match=message):
        read_card(config)


def test_a_tensor_of_another_shape_is_refused(case: Case) -> None:
    name, entry = next((n, t) for n, t in case.manifest.tensors.items() if ".1." in n and "norm" not in n)
    del case.manifest.tensors[name]
    try:
        with pytest.raises(ModelInvalid, match=name.rpartition(".")[0]):
            check_tensors(case.card, case.manifest)
    finally:
        case.manifest.tensors[name] = entry
