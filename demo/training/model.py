"""Define the demo model for training: a small Llama with the checkpoint's parameter names."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that fix the architecture; the defaults give 5.8 million parameters."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def as_config(self) -> dict[str, int | float]:
        """Return the same numbers under the keys of a Hugging Face config.json."""
        return {**asdict(self), "head_dim": self.head_dim}


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for every position: [max_position_embeddings, head_dim]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.max_position_embeddings), shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) by its position's angle, as Llama checkpoints expect."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines + torch.cat((-second, first), dim=-1) * sines


class RMSNorm(nn.Module):
    """Root-mean-square normalisation in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, states: Tensor) -> Tensor:
        """Scale each vector to unit mean square, then by the learned weight."""
        full = states.float()
        scale = torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (full * scale * self.weight).to(states.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention; each key head serves a group of query heads. All are [batch, heads, length, head_dim]."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def attend_plainly(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute the same with two matrix products: on a CPU, short rows train a quarter faster this way."""
    batch, heads, length, width = queries.shape
    pairs = batch * keys.shape[1]
    stacked = queries.reshape(pairs, -1, width) * width**-0.5
    scores = torch.bmm(stacked, keys.reshape(pairs, length, width).transpose(1, 2)).view(
        batch, heads, length, length
    )
    past = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
    shares = torch.softmax(scores.float().masked_fill(~past, -1e9), dim=-1).to(values.dtype)
    mixed = torch.bmm(shares.view(pairs, -1, length), values.reshape(pairs, length, width))
    return mixed.view(batch, heads, length, width)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, shape.hidden_size, bias=False)

    def forward(self, states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """[batch, length, hidden] -> the same shape."""
        batch, length, _ = states.shape
        queries = self.q_proj(states).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        keys = self.k_proj(states).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        values = self.v_proj(states).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        queries, keys = (rotate(part, cosines, sines).to(values.dtype) for part in (queries, keys))
        on_short_cpu_rows = states.device.type == "cpu" and length <= 256
        mixed = (attend_plainly if on_short_cpu_rows else attend)(queries, keys, values)
        merged: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return merged


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[batch, length, hidden] -> the same shape."""
        mixed: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return mixed


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Attention, then feed-forward, each added to the stream."""
        states = states + self.self_attn(self.input_layernorm(states), cosines, sines)
        mixed: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return mixed


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Llama(nn.Module):
    """The whole model; the output head is the embedding, transposed."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        cosines, sines = rotary_tables(shape)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    def _initialise(self, generator: torch.Generator) -> None:
        """Initialise normal weights. Those that write to the residual stream are scaled down by its depth."""
        depth_scale = (2 * self.shape.num_hidden_layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            writes_to_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
            nn.init.normal_(
                parameter, std=deviation * (depth_scale if writes_to_stream else 1), generator=generator
            )

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [batch, length] -> final hidden states [batch, length, hidden]."""
        length = ids.shape[1]
        states = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            states = layer(states, self.cosines[:length], self.sines[:length])
        final: Tensor = self.model.norm(states)
        return final

    def loss(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of next-token losses, and the sum of the weights.

        `weights[b, t]` is the weight of predicting token t. The first token of a row is never predicted.
        """
        states = self.forward(ids[:, :-1])
        logits = functional.linear(states, self.model.embed_tokens.weight).float()
        losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        counted = weights[:, 1:].flatten().float()
        return (losses * counted).sum(), counted.sum()

    def parameter_count(self) -> int:
        """Return the number of parameters, with the shared embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
