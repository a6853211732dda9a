"""The cluster lane: the models that your machines hold together."""

from pathlib import PureWindowsPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from runtime.settings import Section


def _safe(name: str) -> str:
    """Check the name, which is part of answers, logs and URLs."""
    if not name.isprintable() or ".." in PureWindowsPath(name).parts:
        raise ValueError("a model's name must have printable characters, and no `..`")
    return name


Precision = Literal["fp32", "bf16", "fp16", "int8", "int4"]
ModelName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_safe)]


class ClusterModel(Section):
    """A model beside the first one. They share the machines' memory, or take turns in it."""

    name: ModelName = Field(description="Name by which callers ask for the model.")
    model: str = Field(min_length=1, description="A local folder or a Hugging Face ID.")
    kind: Literal["chat", "embedding"] = Field("chat", description="Whether it answers prompts or embeds texts.")
    precision: Precision | None = Field(None, description="Pinned precision; by default the highest that fits.")
    context_tokens: int | None = Field(None, ge=64, description="Maximum length of prompt and answer, in tokens.")
    priority: int = Field(50, ge=0, le=1000, description="Models of a lower priority are unloaded first.")
    idle_s: float | None = Field(
        None, gt=0, description="Seconds without an answer until it is unloaded; by default when memory is needed."
    )
    pinned: bool = Field(False, description="Never unload it for other models.")


class ClusterSettings(Section):
    model: str | None = Field(None, description="Model of the cluster: a local folder or a Hugging Face ID.")
    served_name: ModelName | None = Field(
        None,
        description="Name by which callers ask for the model; by default its folder name or Hugging Face ID.",
    )
    embedding_model: str | None = Field(
        None, description="Model for embeddings, whole on one machine: a local folder or a Hugging Face ID."
    )
    nodes: int = Field(0, ge=0, le=64, description="Number of nodes to start on this machine.")
    host: str | None = Field(None, description="Address where nodes connect; the server's host by default.")
    port: int = Field(0, ge=0, le=65535, description="Port where nodes connect; 0 is the HTTP port + 1 if free.")
    models: tuple[ClusterModel, ...] = Field(
        (),
        max_length=32,
        description="Further models; each stays whole on one machine if it fits on one.",
        examples=['[{"name": "coder", "model": "Qwen/Qwen2.5-Coder-7B-Instruct", "precision": "int8"}]'],
    )
    precision: Precision | None = Field(
        None, description="Pinned precision; by default the highest that fits. int8 is fastest on most CPUs."
    )
    context_tokens: int | None = Field(
        None,
        ge=64,
        description=(
            "Maximum length of prompt and answer, in tokens; by default the model's, less if memory is short."
        ),
    )
    slots: int = Field(32, ge=1, le=1024, description="Maximum number of sequences in the running batch.")
    stages_min: int | None = Field(
        None,
        ge=1,
        le=1024,
        description=(
            "Minimum number of stages, if there are enough machines; by default the number of local nodes."
        ),
    )
    goal: Literal["throughput", "latency"] = Field(
        "throughput",
        description="Plan for total throughput, or for the time per token of one stream.",
    )
    speculation: bool = Field(True, description="Draft tokens from the text itself if that makes answers faster.")
    owners: tuple[str, ...] = Field(
        (),
        description=(
            "Only these nodes may hold the embedding, the first and the last layers: IDs, "
            "their first 6 digits or more, or names."
        ),
        examples=['["3f6c0d", "desk"]'],
    )
    owner_layers: int = Field(
        1, ge=1, le=1024, description="Number of first and last layers that stay with the owners."
    )
    residence_s: float = Field(
        20.0, ge=0, le=3600, description="Seconds for which a loaded model keeps its memory while others wait."
    )
    discovery: bool = Field(
        True, description="Announce the nodes' port by mDNS if others can reach it; use mDNS when joining."
    )
    memory_share: float = Field(1.0, gt=0, le=1, description="Share of free memory that local nodes may use.")
    kv_disk_gb: float = Field(
        0.0,
        ge=0,
        le=100_000,
        description=(
            "Disk for KV caches of earlier prompts on this machine, in GB, so that they survive a restart; 0 for none."
        ),
    )

    @model_validator(mode="after")
    def _has_each_name_once(self) -> Self:
        if not self.models:
            return self
        names = [*self.first_names(), *(model.name for model in self.models)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"models: the name {twice[0]} is used twice; give each model its own name")
        return self

    def first_names(self) -> list[str]:
        """Return the names by which callers ask for `model` and `embedding_model`, as far as they are set."""
        # Import it late: most commands read settings only.
        from cluster.models.store import model_name

        first = [model_name(reference) for reference in (self.model, self.embedding_model) if reference]
        if self.model and self.served_name:
            first[0] = self.served_name
        return first
