"""Where gateways that share a PostgreSQL reach the one among them that writes the books."""

from pydantic import Field

from runtime.settings import Section


class BooksSettings(Section):
    host: str | None = Field(
        None,
        description="Address where this gateway takes the others' events while it leads the books; by default "
        "the one that it has towards the database. PostgreSQL only.",
    )
    port: int = Field(0, ge=0, le=65535, description="Port for that; 0 takes a free one.")
    address: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Host, or host:port, where the others reach it, if that is not where it listens.",
    )
