"""Settings of files and batches: retention, and how much capacity batches leave to other requests."""

from pydantic import Field

from runtime.settings import Section


class BatchesSettings(Section):
    concurrency: int = Field(
        8, ge=0, description="Maximum number of concurrent requests of batches; 0 pauses all batches."
    )
    per_backend_max: int = Field(
        4,
        ge=1,
        description="A backend with this number of requests, or with one free slot, gets no requests of a batch.",
    )
    wait_s: float = Field(
        0.5,
        ge=0,
        description="Predicted wait from which one of your machines is too busy for batches, in seconds.",
    )
    retries_max: int = Field(4, ge=0, description="Number of retries of a request of a batch after a 429 or 5xx.")
    lines_max: int = Field(50_000, ge=1, description="Maximum number of requests in a batch.")
    per_user_max: int = Field(50, ge=1, description="Maximum number of unfinished batches of one user.")
    file_bytes_max: int = Field(200 * 2**20, ge=1024, description="Maximum size of an uploaded file, in bytes.")
    files_per_user_max: int = Field(1000, ge=1, description="Maximum number of files of one user.")
    user_bytes_max: int = Field(2 * 2**30, ge=1024, description="Maximum size of one user's files, in bytes.")
    disk_bytes_max: int = Field(
        10 * 2**30, ge=1024, description="Maximum size of all files, in bytes; then no file is added."
    )
    days_max: int = Field(30, ge=1, description="How long files and ended batches are kept, in days.")
