"""A program that reads a line from stdin, verifies the ledger, prints the verdict, and exits.

It opens the database without migrating it. If stdin closes before the verdict is printed, it exits immediately. See
`gateway.billing.verification`.
"""

import sys
import time

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from accounting.proofs.blocks import Checkpoint
from accounting.proofs.verification import BlockUnknown, verify
from gateway.billing.verification import Reply, VerifyQuestion, facts_of
from runtime.children import read_question
from runtime.database import open_engine, read_sessions


def answer(question: VerifyQuestion) -> Reply:
    """Return the verdict on the part that can be read in time."""
    until_s = time.monotonic() + question.limit_s

    def may_go_on() -> bool:
        return time.monotonic() < until_s

    engine = open_engine(question.dsn, pool_size=1)
    try:
        verdict = verify(
            read_sessions(engine),
            from_block=question.from_block,
            known=[Checkpoint.parse(known) for known in question.known],
            signers=question.signers,
            unproven_max_s=question.unproven_max_s,
            go_on=may_go_on,
        )
    except BlockUnknown as error:
        return Reply(unknown_block=str(error))
    except SQLAlchemyError as error:
        return Reply(problem=f"the ledger cannot be read: {type(error).__name__}")
    finally:
        engine.dispose()
    return Reply(facts_of(verdict))


def main() -> None:
    question = msgspec.json.decode(read_question(), type=VerifyQuestion)
    reply = answer(question)
    sys.stdout.write(f"\n{msgspec.json.encode(reply).decode()}\n")


if __name__ == "__main__":
    main()
