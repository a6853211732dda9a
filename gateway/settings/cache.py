"""Settings of the answer cache: what is cached, for whom and how long."""

from typing import Literal

from pydantic import Field

from runtime.settings import Section


class CacheSettings(Section):
    answers: Literal["off", "deterministic", "all"] = Field(
        "off",
        description=(
            "Cached answers: none, those of deterministic requests (temperature 0, a seed, embeddings), or all."
        ),
    )
    coalesce: bool = Field(
        True, description="Answer identical deterministic requests that arrive together by one request upstream."
    )
    entries_max: int = Field(10_000, ge=1, description="Maximum number of cached answers in one gateway process.")
    bytes_max: int = Field(
        64 * 2**20, ge=2**16, description="Maximum size of cached answers in one gateway process, in bytes."
    )
    lasts_s: int = Field(3600, ge=1, description="How long an answer is cached, in seconds.")
    semantic_model: str | None = Field(
        None,
        description=(
            "Embedding model on your machines that finds cached answers to questions of the "
            "same meaning; by default only identical requests match."
        ),
    )
    similarity_min: float = Field(
        0.97, gt=0, le=1, description="Minimum cosine similarity of two questions with the same meaning."
    )
