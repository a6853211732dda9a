"""The parts of config.json in which families differ: activation, experts, rotary embeddings, windows."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.family import ACTIVATIONS, Activation, Family
from cluster.models.model_config import ModelConfig
from cluster.models.rope import Rope, read_rope


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture's experts: their number, the number that a token visits, and their width.

    `normalized`: the weights of the visited experts add up to 1. `layers` have experts, the others a plain MLP.
    `blocks` says that the file holds them in MXFP4. `alpha` and `limit` belong to the clamped SwiGLU.
    """

    count: int
    per_token: int
    intermediate: int
    normalized: bool
    layers: frozenset[int]
    blocks: bool = False
    alpha: float = 1.0
    limit: float = 0.0


def read_activation(config: ModelConfig) -> Activation:
    """Return the activation. Raise ModelUnsupported for an unknown one."""
    name = config.get("hidden_act")
    if name not in ACTIVATIONS:
        raise ModelUnsupported(
            f"config.json: {config.name('hidden_act')} {name!r} is not supported, only {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def read_experts(config: ModelConfig, layers: int, *, blocks: bool) -> Experts:
    """Return the experts. Raise ModelInvalid for impossible numbers."""
    step = config.count("decoder_sparse_step", 1)
    plain = config.get("mlp_only_layers") or ()
    has_own_width = config.get("moe_intermediate_size") is not None
    experts = Experts(
        count=config.count("num_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate=config.count("moe_intermediate_size" if has_own_width else "intermediate_size"),
        # Families without the setting weigh by a softmax over the visited experts, which is the same.
        normalized=config.get("norm_topk_prob") is not False,
        layers=frozenset(layer for layer in range(layers) if layer not in plain and (layer + 1) % step == 0),
        blocks=blocks,
        alpha=config.number("swiglu_alpha", 1.0),
        limit=config.number("swiglu_limit", 0.0),
    )
    if experts.per_token > experts.count:
        raise ModelInvalid(f"config.json: a token cannot visit {experts.per_token} of {experts.count} experts")
    return experts


def read_ropes(family: Family, config: ModelConfig, head_dim: int) -> tuple[Rope, Rope | None]:
    """Return the rope of all layers, and that of layers with a window if they have their own.

    Raise ModelUnsupported or ModelInvalid as `read_rope` does.
    """
    # transformers 5 writes everything into rope_parameters; older files have rope_theta beside rope_scaling.
    setting = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    stretching = config.part(setting)
    theta = config.number("rope_theta")
    if not family.local_rope:
        return read_rope(config, stretching, theta, family.ropes, head_dim), None
    by_kind = stretching.get("full_attention") is not None or stretching.get("sliding_attention") is not None
    everywhere = stretching.part("full_attention") if by_kind else stretching
    local = stretching.part("sliding_attention") if by_kind else ModelConfig({})
    return (
        read_rope(config, everywhere, theta, family.ropes, head_dim),
        read_rope(config, local, config.number("rope_local_base_freq"), family.ropes, head_dim),
    )


def read_windows(family: Family, config: ModelConfig, layers: int) -> tuple[int, ...]:
    """Return how many tokens each layer attends to, 0 for all; empty if every layer attends to all."""
    kinds = _layer_types(family, config, layers) if family.windows == "typed" else ("sliding_attention",) * layers
    window = config.count_or_none("sliding_window")
    if family.windows == "never" or window is None or config.get("use_sliding_window") is False:
        return ()
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _layer_types(family: Family, config: ModelConfig, layers: int) -> Sequence[str]:
    types = config.get("layer_types")
    if types is None:
        first = 0 if family.full_every else config.count("max_window_layers")
        every = config.count("sliding_window_pattern", family.full_every or layers + 1)
        return [
            "sliding_attention" if layer >= first and (layer + 1) % every else "full_attention"
            for layer in range(layers)
        ]
    if not isinstance(types, list) or len(types) != layers:
        raise ModelInvalid(f"config.json: layer_types must name the kind of each of the {layers} layers")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelUnsupported(f"config.json: layer_types has {kind!r}, which is not supported")
    return types
