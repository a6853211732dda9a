"""The input of advice on a model: its shape, the machines, other copies of it, and costs."""

import re
from dataclasses import dataclass, field

from accounting.metering.own_cost import CostTerms
from accounting.money import Price
from cluster.models.layer_cost import Precision
from cluster.models.model_card import ModelCard
from cluster.plans.network import Network
from cluster.plans.plan import Goal, Member

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class PoolCopy:
    """A backend that lists the model: a whole copy, on a machine whose memory is unknown."""

    backend: str
    model: str
    is_resident: bool
    is_ready: bool
    note: str = ""
    quantization: str | None = None
    context_tokens: int | None = None
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CloudPrice:
    """A provider's offer; `name` is the model name that callers use."""

    name: str
    price: Price


@dataclass(frozen=True, slots=True)
class OwnCost:
    """The cost of an own machine, and the ratio of prompt tokens to answer tokens."""

    terms: CostTerms
    watts: float
    prompt_tokens_per_answer_token: int = 3


@dataclass(frozen=True, slots=True)
class AdviceQuestion:
    """Everything that advice depends on. `members` are the cluster's machines, or only this one.

    `card` is None if only pool servers or providers know the model. `serving` is the model that the cluster serves
    now. `context_tokens`, `precision` and `stages_min` are wishes.
    """

    name: str
    card: ModelCard | None
    members: tuple[Member, ...]
    cost: OwnCost
    network: Network = field(default_factory=Network)
    pool: tuple[PoolCopy, ...] = ()
    cloud: tuple[CloudPrice, ...] = ()
    serving: str | None = None
    context_tokens: int | None = None
    precision: Precision | None = None
    goal: Goal = "throughput"
    slots: int = 32
    stages_min: int = 1


def is_same_model(first: str, second: str) -> bool:
    """Return whether two names look like the same model's, as owner/Qwen3-8B and qwen3:8b do."""
    return first == second or (_letters(first) == _letters(second) != "")


def _letters(name: str) -> str:
    last = name.rpartition("/")[2].lower().removesuffix(":latest").removesuffix(".gguf")
    return "".join(_WORD.findall(last))
