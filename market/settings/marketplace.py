"""The house: whether this gateway takes in buyers' credits for sellers, and on what terms."""

from pydantic import Field

from runtime.settings import Section


class HouseSettings(Section):
    enabled: bool = Field(False, description="Whether this gateway is the house of a market: see docs/market.md.")
    fee_bps: int = Field(500, ge=0, le=10_000, description="Fee in hundredths of a percent of what is sold.")
    allocation_hours_max: int = Field(
        72, ge=1, le=696, description="How long credits may be allocated to a seller, in hours."
    )
    probation_days: int = Field(7, ge=0, le=365, description="How long a seller is new at least, in days.")
    probation_jobs: int = Field(20, ge=0, description="How many paid jobs a seller is new for at least.")
    probation_buyers: int = Field(
        3, ge=0, description="How many buyers a seller has to have had to be new no more."
    )
    maturity_days_new: int = Field(
        7, ge=0, le=180, description="How old a new seller's earnings have to be to be paid out, in days."
    )
    maturity_days: int = Field(2, ge=0, le=180, description="How old other sellers' earnings have to be, in days.")
    reserve_bps: int = Field(
        1000,
        ge=0,
        le=10_000,
        description="Part of a new seller's earnings that is kept 30 days longer, in hundredths of a percent.",
    )
    tick_s: float = Field(
        5.0, gt=0, le=300, description="How often the house looks what has become due, in seconds."
    )
    allows_loopback: bool = Field(
        False, description="Whether the house calls addresses of this machine, for trying out a market on one."
    )
