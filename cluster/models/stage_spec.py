"""Which part of a model one stage holds, and in which form rows travel to the next stage."""

from typing import Literal

from msgspec import Struct

from cluster.models.layer_cost import Precision

CHUNK_TOKENS = 256

WireFormat = Literal["fp32", "bf16", "fp16", "int8"]
"""The format of rows on the links between stages; "int8" is in blocks with a scale each."""


class StageSpec(Struct, frozen=True, kw_only=True):
    """One stage: layers [first_layer, end_layer) of the model on one node, and the room for its KV cache."""

    index: int
    stages: int
    first_layer: int
    end_layer: int
    precision: Precision
    context_tokens: int
    kv_blocks: int
    slots: int
    wire: WireFormat = "fp32"

    @classmethod
    def whole(
        cls, layers: int, *, precision: Precision, context_tokens: int, slots: int, kv_blocks: int
    ) -> "StageSpec":
        """Return the spec of all layers on one machine."""
        return cls(
            index=0,
            stages=1,
            first_layer=0,
            end_layer=layers,
            precision=precision,
            context_tokens=context_tokens,
            kv_blocks=kv_blocks,
            slots=slots,
        )

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    @property
    def rows_max(self) -> int:
        """Return the most rows that one step can bring: a prefill chunk, and every slot decoding."""
        return CHUNK_TOKENS + self.slots
