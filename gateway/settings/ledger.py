"""The address at which gateways that share a PostgreSQL reach the one that writes the ledger."""

from pydantic import Field

from runtime.settings import Section


class LedgerSettings(Section):
    host: str | None = Field(
        None,
        description=(
            "Address where this gateway accepts the others' entries while it is the ledger's "
            "leader; by default its address towards the database. PostgreSQL only."
        ),
    )
    port: int = Field(0, ge=0, le=65535, description="Port for that; 0 selects a free one.")
    address: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Host, or host:port, where the others reach it, if it differs from the listening address.",
    )
