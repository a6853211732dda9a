"""What every worker of pytest-xdist would prepare by itself: done once, in the process that they are forks of."""

import threading

from gateway.console import renderer
from tests.databases import migrated_file
from tests.spared_work import prepare_routes


def warm_up() -> None:
    """Leave no thread behind: forks would lack it."""
    migrated_file()
    prepare_routes()
    # To compile all of the console's templates takes 1.4 s of CPU.
    for name in renderer._templates.list_templates():
        renderer._templates.get_template(name)
    assert threading.active_count() == 1, threading.enumerate()
