"""Define the rules about what a gateway that makes blocks has seen.

Each query returns what differs in the ledger.
"""

from sqlalchemy import LargeBinary, column, exists, false, literal, select, table

from accounting.ledger.scope import Query, Scope
from accounting.tables import event_table

# The table of blocks is defined in `accounting.proofs`, which imports the ledger.
_block = table("block", column("n"), column("hash", LargeBinary))


def block_gone(scope: Scope) -> Query:
    if scope.witness.block is None:
        return select(literal("")).where(false())
    n, block_hash = scope.witness.block
    is_there = exists().where(_block.c.n == n, _block.c.hash == block_hash)
    return select(literal(f"{n}:{block_hash.hex()}")).where(~is_there)


def altered_events(scope: Scope) -> Query:
    return select(event_table.c.seq).where(event_table.c.seq.in_(scope.witness.altered))
