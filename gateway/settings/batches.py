"""How much of files and batches is kept, and how far batches keep out of everybody's way."""

from pydantic import Field

from runtime.settings import Section


class BatchesSettings(Section):
    concurrency: int = Field(
        8, ge=0, description="Most requests of batches answered at once; 0 pauses all batches."
    )
    per_backend_max: int = Field(
        4,
        ge=1,
        description="A backend with this many requests, or all but one of its slots, gets none of a batch.",
    )
    wait_s: float = Field(
        0.5, ge=0, description="Predicted wait from which an own machine is too busy for batches, in seconds."
    )
    retries_max: int = Field(
        4, ge=0, description="How often a request of a batch is tried again after a 429 or 5xx."
    )
    lines_max: int = Field(50_000, ge=1, description="Most requests in a batch.")
    per_person_max: int = Field(50, ge=1, description="Most unfinished batches of one person.")
    file_bytes_max: int = Field(200 * 2**20, ge=1024, description="Largest uploaded file, in bytes.")
    files_per_person_max: int = Field(1000, ge=1, description="Most files of one person.")
    person_bytes_max: int = Field(2 * 2**30, ge=1024, description="Most bytes of one person's files.")
    disk_bytes_max: int = Field(10 * 2**30, ge=1024, description="Most bytes of all files; then nothing is added.")
    days_max: int = Field(30, ge=1, description="How long files and ended batches are kept, in days.")
