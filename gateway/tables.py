"""Every table of the gateway, gathered for the migrations; each stands in the room that it belongs to."""

import gateway.batches.tables
import gateway.identity.tables
import gateway.lanes.tables
import gateway.limits.tables
import gateway.market.tables
import gateway.records.tables
import gateway.responses.tables
import gateway.routing.tables  # noqa: F401
import market.coordination.tables  # noqa: F401
