"""transformers' own model of a checkpoint, of which only one stage's weights exist."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cluster.compute.compat_attention import ATTENTION, attend
from cluster.compute.compat_experts import EXPERTS, is_stacked, pack_experts, run_experts
from cluster.compute.gguf_blocks import dequantise
from cluster.compute.linear import Linear, pack
from cluster.compute.weights import ReadTensor, read_pinned
from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.compat_card import BLOCK_SCALE, check_names, config_settings, is_plain, layer_of, stage_names
from cluster.models.manifest import Manifest
from cluster.models.model_card import ModelCard, Precision
from cluster.models.stage_spec import StageSpec


def build(config: dict[str, Any], dtype: torch.dtype) -> Any:
    """Return the model without any weights. Raise ModelUnsupported, naming what is missing."""
    try:
        import transformers
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        raise ModelUnsupported(
            f"Model family {config.get('model_type')!r} needs transformers. In this node's virtual environment "
            "run: pip install 'transformers>=5.23'"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    AttentionInterface.register(ATTENTION, attend)
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, run_experts)
    kind, settings = config_settings(config)
    try:
        parsed = transformers.CONFIG_MAPPING[kind].from_dict(settings)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                parsed, dtype=dtype, attn_implementation=ATTENTION
            )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelUnsupported(f"transformers cannot build model family {kind!r}: {error}") from None
    model.eval().requires_grad_(requires_grad=False)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = EXPERTS
    return model


def find_layers(model: Any, layers: int) -> tuple[nn.Module, str]:
    """Return the module that holds the list of layers, and the list's name. Raise ModelUnsupported."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == layers:
                return parent, name
    raise ModelUnsupported(f"{type(model).__name__} has no list of {layers} layers")


def load_weights(
    model: Any, card: ModelCard, manifest: Manifest, spec: StageSpec, read: ReadTensor, device: torch.device
) -> None:
    """Load the weights of the stage's layers and ends, one layer at a time, packed at the pinned precision.

    Raise WeightsMismatch if bytes differ from the manifest, ModelInvalid if tensors are missing.
    """
    check_names(card, manifest)
    parent, name = find_layers(model, card.layers)
    layers: nn.ModuleList = getattr(parent, name)
    names = stage_names(card, spec, manifest.tensors)
    by_layer: dict[int | None, list[str]] = {}
    for tensor in names:
        by_layer.setdefault(layer_of(tensor), []).append(tensor)
    for number, tensors in by_layer.items():
        _fill(model, manifest, tensors, read, device)
        if number is not None:
            _finish(layers[number], spec.precision, manifest.name)
    model.tie_weights()
    head = model.get_output_embeddings()
    if spec.is_last and isinstance(head, nn.Linear):
        _require(head, manifest.name)
        if spec.precision in ("int8", "int4"):
            model.set_output_embeddings(PackedLinear(pack(head.weight, head.bias, spec.precision)))
    _compute_buffers(model, layers, range(spec.first_layer, spec.end_layer), device)


def _fill(model: Any, manifest: Manifest, names: Iterable[str], read: ReadTensor, device: torch.device) -> None:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    tensors = {name: _load(name, manifest, read, model.dtype) for name in names if not name.endswith(BLOCK_SCALE)}
    about = LoadStateDictConfig(
        device_map={"": device}, dtype=model.dtype, weight_mapping=get_model_conversion_mapping(model)
    )
    report, _ = convert_and_load_state_dict_in_model(model, tensors, about)
    for wrong in (report.mismatched_keys, report.conversion_errors, report.error_msgs):
        if wrong:
            raise ModelInvalid(f"{manifest.name} contradicts its config.json: {sorted(map(str, wrong))[0]}")


def _load(name: str, manifest: Manifest, read: ReadTensor, dtype: torch.dtype) -> Tensor:
    tensor = _verified(name, manifest, read)
    scale = manifest.tensors.get(name + BLOCK_SCALE)
    if scale is not None:
        scales = _verified(name + BLOCK_SCALE, manifest, read).float()
        tensor = _unblocked(tensor.float(), scales)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _verified(name: str, manifest: Manifest, read: ReadTensor) -> Tensor:
    entry = manifest.tensors[name]
    return dequantise(entry, read_pinned(name, entry, read))


def _unblocked(weight: Tensor, scales: Tensor) -> Tensor:
    """Return FP8 weights [out, in] times the scale of each block.

    `scales` is [out / 128, in / 128], rounded up: blocks are 128 by 128, except for the last ones.
    """
    size = 128
    rows = scales.repeat_interleave(size, 0)[: weight.shape[0]]
    return weight.mul_(rows.repeat_interleave(size, 1)[:, : weight.shape[1]])


class PackedLinear(nn.Module):
    """One of our packed projections in place of transformers'. It takes and returns rows [..., features]."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows [..., out] of rows [..., in]."""
        packed = self._linear(rows.reshape(-1, rows.shape[-1]))
        return packed.view(*rows.shape[:-1], self._linear.out_features)


def _finish(layer: nn.Module, precision: Precision, name: str) -> None:
    _require(layer, name)
    if precision not in ("int8", "int4"):
        return
    for parent in list(layer.modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not is_plain(child_name):
                setattr(parent, child_name, PackedLinear(pack(child.weight, child.bias, precision)))
        if is_stacked(parent):
            pack_experts(parent, precision)


def _require(module: nn.Module, name: str) -> None:
    missing = [parameter for parameter, value in module.named_parameters() if value.is_meta]
    if missing:
        raise ModelInvalid(f"{name} lacks the tensor of {missing[0]}, which its config.json requires")


def _compute_buffers(model: Any, layers: nn.ModuleList, mine: range, device: torch.device) -> None:
    """Compute buffers that no file holds, such as the frequencies of rotary embeddings."""
    foreign = {
        id(module) for number, layer in enumerate(layers) if number not in mine for module in layer.modules()
    }
    for module in model.modules():
        stale = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if not stale or id(module) in foreign:
            continue
        for name in stale:
            buffer = getattr(module, name)
            module.register_buffer(name, torch.empty_like(buffer, device=device), persistent=False)
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = True
        model._init_weights(module)
