"""What a process asks of the C library's allocator, of Python's collector and of the kernel."""

import ctypes
import gc
import resource
import sys
from contextlib import suppress

_ARENAS_MAX = -8  # glibc's M_ARENA_MAX
# Objects. A request leaves next to none behind that counting references does not free.
_COLLECTED_AFTER = 20_000


def share_one_arena() -> None:
    """Before any thread is there: each would get memory of its own, 4 MB in all, that it hardly uses.

    Threads of Python hardly ever ask for memory at once, so that sharing costs no time.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_ARENAS_MAX, 1)


def settle() -> None:
    """What is there now stays. Only what requests make is looked through for rubbish, and not after every few."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(_COLLECTED_AFTER, 50, 20)


def limit_memory(bytes_max: int) -> None:
    """What asks for more fails alone, with a MemoryError. And no core file: it would hold keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        bytes_max = min(bytes_max, hard)
    with suppress(ValueError, OSError):  # not every system knows this limit
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
