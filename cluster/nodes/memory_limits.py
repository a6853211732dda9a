"""The most memory that this process may use: the limit of its container or service, if there is one."""

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
# Version 1 marks "no limit" with a number near 2**63, version 2 with the word "max".
_UNLIMITED = 2**60


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group's limit, and the memory that its processes hold and the kernel cannot take back."""

    limit_bytes: int
    held_bytes: int

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.held_bytes)


def memory_limit(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> MemoryLimit | None:
    """Return the limit that leaves the least memory, or None without any.

    It checks this process's control group and those around it. Only Linux has control groups. Memory that only
    caches files does not count, since it is freed on demand.
    """
    limits = [limit for folder in _groups(root, membership) if (limit := _limit(folder))]
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def _groups(root: Path, membership: Path) -> list[Path]:
    """Return the folders of our control groups, innermost first.

    In a container, its own group often is the root.
    """
    folders = []
    for line in _read(membership).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "memory" not in controllers.split(","):
            continue
        top = root if number == "0" else root / "memory"
        inner = top / path.strip("/")
        while inner != top and top in inner.parents:
            folders.append(inner)
            inner = inner.parent
        folders.append(top)
    return folders


def _limit(folder: Path) -> MemoryLimit | None:
    for limit, held in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        limit_text, held_text = _read(folder / limit).strip(), _read(folder / held).strip()
        if limit_text.isdigit() and held_text.isdigit() and int(limit_text) < _UNLIMITED:
            return MemoryLimit(int(limit_text), max(0, int(held_text) - _cached_bytes(folder)))
    return None


def _cached_bytes(folder: Path) -> int:
    """Return the memory of cached files in bytes, which does not count as held."""
    counted = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    prefix = "total_" if "total_inactive_file" in counted else ""
    fields = (counted.get(f"{prefix}{kind}_file", "0") for kind in ("active", "inactive"))
    return sum(int(value) for value in fields if value.isdigit())


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
