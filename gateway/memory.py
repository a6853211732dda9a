"""What the process asks of the C library's allocator and of Python's collector."""

import ctypes
import gc
import sys

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
