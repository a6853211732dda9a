"""Processes that tests kill, as forks of a server that has imported everything and has no threads: fast, and safe."""

import multiprocessing

processes = multiprocessing.get_context("forkserver")
# A test process has one server: a module that is missing here is imported by each fork, for 0.5 s of CPU and more.
processes.set_forkserver_preload(
    [
        "tests.accounting.doomed_writer",
        "tests.accounting.payments.doomed_payer",
        "tests.accounting.proofs.doomed_maker",
        "tests.accounting.sharing_gateway",
    ]
)
