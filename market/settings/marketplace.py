"""The marketplace: whether this gateway takes in buyers' credits for sellers, and on what terms."""

from pydantic import Field

from runtime.settings import Section


class MarketplaceSettings(Section):
    enabled: bool = Field(False, description="Whether this gateway is a marketplace: see docs/market.md.")
    fee_bps: int = Field(500, ge=0, le=10_000, description="Fee of a sale, in hundredths of a percent.")
    allocation_hours_max: int = Field(72, ge=1, le=696, description="Maximum duration of an allocation, in hours.")
    probation_days: int = Field(7, ge=0, le=365, description="Minimum length of the new-seller period, in days.")
    probation_jobs: int = Field(20, ge=0, description="Minimum number of paid jobs in the new-seller period.")
    probation_buyers: int = Field(3, ge=0, description="Minimum number of buyers in the new-seller period.")
    maturity_days_new: int = Field(
        7, ge=0, le=180, description="Age at which a new seller's earnings become available, in days."
    )
    maturity_days: int = Field(
        2, ge=0, le=180, description="Age at which other sellers' earnings become available, in days."
    )
    reserve_bps: int = Field(
        1000,
        ge=0,
        le=10_000,
        description=(
            "Share of a new seller's earnings that stays in reserve for 30 days more, in hundredths of a percent."
        ),
    )
    tick_s: float = Field(5.0, gt=0, le=300, description="Interval of checks for due amounts, in seconds.")
    allows_loopback: bool = Field(
        False, description="Whether the marketplace calls addresses of this machine, for tests on one machine."
    )
