"""The cluster lane: the model that own machines hold together."""

from pathlib import PureWindowsPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from runtime.settings import Section


def _safe(name: str) -> str:
    """It goes into answers, logs and addresses."""
    if not name.isprintable() or ".." in PureWindowsPath(name).parts:
        raise ValueError("printable characters, and no `..`, make the name of a model")
    return name


ModelName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_safe)]


class ClusterSettings(Section):
    model: str | None = Field(None, description="Model to split: a local folder or a Hugging Face id.")
    served_name: ModelName | None = Field(
        None,
        description="Name by which callers ask for the model; by default its folder's or its Hugging Face id.",
    )
    embedding_model: str | None = Field(
        None, description="Model for embeddings, whole on one machine: a local folder or a Hugging Face id."
    )
    nodes: int = Field(0, ge=0, le=64, description="How many nodes to start on this machine.")
    host: str | None = Field(None, description="Address where nodes connect; the server's host by default.")
    port: int = Field(0, ge=0, le=65535, description="Port where nodes connect; 0 is the HTTP port + 1 if free.")
    precision: Literal["fp32", "bf16", "fp16", "int8", "int4"] | None = Field(
        None, description="Pinned precision; without one the widest that fits. int8 is fastest on most CPUs."
    )
    context_tokens: int | None = Field(
        None,
        ge=64,
        description="Longest prompt with its answer, in tokens; "
        "without one the model's, less where memory is short.",
    )
    slots: int = Field(32, ge=1, le=1024, description="Most sequences in the running batch.")
    stages_min: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Fewest stages, where machines are there; by default as many as local nodes.",
    )
    goal: Literal["throughput", "latency"] = Field(
        "throughput",
        description="Plan for the most tokens per second, or for the least time per token of one stream.",
    )
    speculation: bool = Field(True, description="Draft from the text itself where that makes answers faster.")
    owners: tuple[str, ...] = Field(
        (),
        description="The only nodes that may hold the embedding, the first and the last layers: ids, "
        "their first 6 digits or more, or names.",
        examples=['["3f6c0d", "desk"]'],
    )
    owner_layers: int = Field(1, ge=1, le=1024, description="How many first and last layers stay with the owners.")
    discovery: bool = Field(
        True, description="Announce the nodes' port by mDNS where others can reach it; look for it when joining."
    )
    memory_share: float = Field(1.0, gt=0, le=1, description="Part of free memory that local nodes may fill.")
