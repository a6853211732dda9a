"""Every table of the gateway, gathered for the migrations; each stands in the room that it belongs to."""

import gateway.identity.tables
import gateway.records.tables  # noqa: F401
