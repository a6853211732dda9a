"""Settings of the answer cache: what is cached, for whom and how long."""

from typing import Literal

from pydantic import Field

from runtime.settings import Section


class CacheSettings(Section):
    answers: Literal["off", "deterministic", "all"] = Field(
        "off",
        description="Which answers are kept: none, those to requests that ask for no chance "
        "(temperature 0, a seed, embeddings), or all.",
    )
    coalesce: bool = Field(
        True, description="Requests without chance that are the same and arrive together are answered by one."
    )
    entries_max: int = Field(10_000, ge=1, description="Most answers kept in one gateway process.")
    bytes_max: int = Field(64 * 2**20, ge=2**16, description="Most bytes of answers kept in one gateway process.")
    lasts_s: int = Field(3600, ge=1, description="How long an answer is kept, in seconds.")
    semantic_model: str | None = Field(
        None,
        description="Embedding model of an own lane that finds answers to questions of the same meaning; "
        "without one only the same request finds its answer.",
    )
    similarity_min: float = Field(
        0.97, gt=0, le=1, description="Least cosine of two questions that are taken for the same."
    )
