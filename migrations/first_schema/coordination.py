"""Leader leases, and small entries that gateways share in the database."""

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.columns import blob, number, number_key, text, texts


def create() -> None:
    leader = op.create_table(
        "ledger_leader",
        number_key("id"),
        number("epoch"),
        *texts("holder", "address", "fingerprint"),
        number("expires_ns"),
        sa.CheckConstraint("id = 1", name="ledger_leader_one"),
    )
    # The lease exists from the beginning, and nobody has it. From then on it only changes its holder.
    nobody = {"id": 1, "epoch": 0, "holder": "", "address": "", "fingerprint": "", "expires_ns": 0}
    op.bulk_insert(leader, [nobody])
    op.create_table("ledger_gateway", text("fingerprint", key=True), text("certificate"), number("expires_ns"))
    op.create_table(
        "coordination_lease", text("name", key=True), number("epoch"), text("holder"), number("expires_ns")
    )
    op.create_table(
        "coordination_entry",
        text("key", key=True),
        blob("value"),
        number("revision"),
        number("expires_ns", optional=True),
    )
    # Revisions come from this row, one after the other: each writer waits for the previous one to commit.
    clock = op.create_table(
        "coordination_clock",
        number_key("id"),
        number("revision"),
        sa.CheckConstraint("id = 1", name="coordination_clock_one"),
    )
    op.bulk_insert(clock, [{"id": 1, "revision": 0}])
