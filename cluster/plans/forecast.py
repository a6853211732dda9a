"""The expected times of a pipeline, in seconds, before it exists: a step's time on each machine and each link."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from cluster.machine import Machine
from cluster.models.layer_cost import Precision
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import CHUNK_TOKENS
from cluster.plans.network import Link, Network
from cluster.plans.speeds import dispatch_s, memory_bytes_per_s, speed_of
from cluster.trust.identity import NodeId

# A stage's time for a step outside its layers (receiving, unpacking, answering), and the coordinator's time.
STAGE_STEP_S = 0.00025
COORDINATOR_STEP_S = 0.0003
# The size of a frame's header and message, and of each token that the last stage sends to the coordinator.
_FRAME_BYTES = 250
_TOKEN_BYTES = 40
# The time to pack rows into int8 blocks and unpack them, per value.
_COMPRESS_S = 18e-9
# Measured with the fast path's attention. First, the share of memory speed at which the KV cache is read. Second,
# each sequence's own calls as a share of a layer's. Third, a prompt's attention as a number of products of queries
# and keys.
_KV_SHARE = 0.45
_SEQUENCE_DISPATCH = 0.7
_PREFILL_PASSES = 4
# The assumed position of a sequence in its context.
_TYPICAL_CONTEXT = 512
_PROMPT_TOKENS = 512
_WIRE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0 + 4 / 128}


class Prediction(Struct, frozen=True, kw_only=True):
    """The expected speed of a plan.

    `stage_s` is each stage's time for a row; `assumed` lists the facts that were not measured.
    """

    token_s: float
    tokens_per_s: float
    streams: int
    in_flight: int
    first_token_s: float
    """Seconds to the first token after a prompt of 512 tokens."""
    stage_s: tuple[float, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step of `rows` rows, each of another sequence, or with `is_prefill` all of one prompt.

    `context` is how many tokens such a row attends to on average.
    """

    rows: int
    is_prefill: bool = False
    context: int = _TYPICAL_CONTEXT


@dataclass(frozen=True, slots=True)
class Costs:
    """One model in one precision, with rows on the links in one format."""

    card: ModelCard
    precision: Precision
    wire: str
    _shapes: list[tuple[float, float, int, int]] = field(default_factory=list, compare=False)

    def layer_s(self, machine: Machine, step: Step) -> float:
        """Return the average layer's time for a step, in seconds."""
        card, kind = self.card, machine.device.kind
        speed = speed_of(machine.pace, kind, self.precision)
        million = 1e6 * card.layers
        seconds = 0.0
        for shared, each, count, per_token in self._matrices():
            seconds += shared / million * speed.per_million(step.rows)
            if each:
                visited = count * (1 - (1 - per_token / count) ** step.rows)
                seconds += visited * each / million * speed.per_million(step.rows * per_token / visited)
        return dispatch_s(machine.pace) + seconds + self._attention_s(machine, step)

    def _attention_s(self, machine: Machine, step: Step) -> float:
        """Return the average layer's attention time in seconds.

        It is the time of reading the KV cache, or for a prompt of multiplying queries and keys.
        """
        card, kind = self.card, machine.device.kind
        context = min(step.context, card.context_tokens)
        if step.is_prefill:
            values = context * card.heads * card.head_dim
            speed = speed_of(machine.pace, kind, "fp32" if kind == "cpu" else "bf16")
            return _PREFILL_PASSES * values / 1e6 * speed.per_million(step.rows)
        # CPUs widen 16-bit keys and values before they multiply.
        kv_bytes = card.kv_bytes_per_token("fp32" if kind == "cpu" else "bf16")
        each_s = context * kv_bytes / (_KV_SHARE * memory_bytes_per_s(machine.pace, kind))
        return step.rows * (_SEQUENCE_DISPATCH * dispatch_s(machine.pace) + each_s)

    def _matrices(self) -> list[tuple[float, float, int, int]]:
        """Return, by layer shape: values for every row, values of one expert, experts, experts for each row."""
        if not self._shapes:
            self._shapes.extend(_shapes(self.card))
        return self._shapes

    def logits_s(self, machine: Machine, step: Step) -> float:
        """Return what the last stage adds, in seconds. A prompt computes logits only for its last row."""
        rows = 1 if step.is_prefill else step.rows
        speed = speed_of(machine.pace, machine.device.kind, self.precision)
        return self.card.vocabulary * self.card.hidden / 1e6 * speed.per_million(rows)

    def row_bytes(self) -> float:
        """Return the bytes of one row on a link."""
        return self.card.hidden * _WIRE_BYTES[self.wire]

    def link_busy_s(self, link: Link, step: Step) -> float:
        """Return for how many seconds a step's rows keep a link busy."""
        return (_FRAME_BYTES + step.rows * self.row_bytes()) / link.bytes_per_s

    def hop_s(self, link: Link, step: Step) -> float:
        """Return the time from one stage to the next, in seconds."""
        packing_s = step.rows * self.card.hidden * _COMPRESS_S if self.wire == "int8" else 0.0
        return link.delay_s + link.jitter_s / 2 + self.link_busy_s(link, step) + packing_s

    def back_s(self, link: Link, step: Step) -> float:
        """Return the time from the last stage to the coordinator, in seconds: only token ids."""
        rows = 1 if step.is_prefill else step.rows
        return link.delay_s + link.jitter_s / 2 + (_FRAME_BYTES + rows * _TOKEN_BYTES) / link.bytes_per_s


def _shapes(card: ModelCard) -> list[tuple[float, float, int, int]]:
    layers: dict[tuple[float, float, int, int], int] = {}
    for layer in range(card.layers):
        values = float(card.layer_cost(layer).matrix_values)
        shape = (values, 0.0, 1, 1)
        if card.experts and card.has_experts(layer):
            count, per_token = card.experts.count, card.experts.per_token
            each = 3.0 * card.hidden * card.experts.intermediate
            shape = (max(0.0, values - count * each), each, count, per_token)
        layers[shape] = layers.get(shape, 0) + 1
    return [(shared * n, each * n, count, per) for (shared, each, count, per), n in layers.items()]


def in_flight_choices(streams: int) -> list[int]:
    """Return the numbers of micro-batches worth trying for this many streams."""
    choices = [m for m in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if m <= streams]
    return [m for at, m in enumerate(choices) if at == 0 or -(-streams // m) < -(-streams // choices[at - 1])]


@dataclass(frozen=True, slots=True)
class PipelineForecast:
    """A pipeline whose machines, layers and links are known."""

    costs: Costs
    machines: Sequence[Machine]
    counts: Sequence[int]
    links: Sequence[Link]
    """Links between neighbours, the one back to the coordinator last; none for a single stage."""

    def stage_s(self, step: Step) -> list[float]:
        """Return each stage's time for a step, in seconds."""
        seconds = [
            STAGE_STEP_S + count * self.costs.layer_s(machine, step)
            for machine, count in zip(self.machines, self.counts, strict=True)
        ]
        seconds[-1] += self.costs.logits_s(self.machines[-1], step)
        return seconds

    def hops_s(self, step: Step) -> float:
        """Return the time of all hops of a step, in seconds."""
        if not self.links:
            return 0.0
        return sum(self.costs.hop_s(link, step) for link in self.links[:-1]) + self.costs.back_s(
            self.links[-1], step
        )

    def around_s(self, step: Step) -> float:
        """Return the time of a step's round trip through the pipeline, in seconds."""
        return COORDINATOR_STEP_S + sum(self.stage_s(step)) + self.hops_s(step)

    def pace_s(self, step: Step) -> float:
        """Return the slowest stage's or link's time, in seconds."""
        busy = [self.costs.link_busy_s(link, step) for link in self.links[:-1]]
        return max([*self.stage_s(step), *busy])

    def predict(self, streams: int, assumed: tuple[str, ...] = ()) -> Prediction:
        """Return what `streams` sequences can expect, each a typical way into its context."""
        one = Step(1)
        best = (0.0, 1)
        for in_flight in in_flight_choices(streams):
            step = Step(-(-streams // in_flight))
            period_s = max(self.around_s(step), in_flight * self.pace_s(step))
            best = max(best, (streams / period_s, in_flight))
        chunk = Step(CHUNK_TOKENS, is_prefill=True, context=_PROMPT_TOKENS // 2)
        chunks = -(-_PROMPT_TOKENS // CHUNK_TOKENS)
        return Prediction(
            token_s=self.around_s(one),
            tokens_per_s=best[0],
            streams=streams,
            in_flight=best[1],
            first_token_s=self.around_s(chunk) + (chunks - 1) * self.pace_s(chunk),
            stage_s=tuple(self.stage_s(one)),
            assumed=assumed,
        )


def links_of(network: Network, partition: Sequence[NodeId]) -> list[Link]:
    """Return the links between neighbours, the one back to the coordinator last; none for one machine."""
    if len(partition) < 2:
        return []
    return [network.link(a, b) for a, b in zip(partition, [*partition[1:], partition[0]], strict=True)]
