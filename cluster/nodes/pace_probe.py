"""The computing speed of this machine, measured by the process that will compute, once, and stored on disk."""

import time
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F

from cluster.compute.kernels import KernelReport, measure, read_bytes_per_s, self_test
from cluster.machine import TEXT_CHARACTERS_MAX, Pace, Speed

# The shape of a matrix in a common layer: hidden and intermediate. Kernels are timed on it, and predictions scale with
# the number of weights. A GPU needs a larger one, beyond its caches.
_CPU_SHAPE, _GPU_SHAPE = (1024, 2816), (8192, 16384)
_VALID_S = 7 * 24 * 3600.0
# Calls of small kernels in a layer of the fast path beside its matrices, in rounds of `_small_calls`.
_LAYER_ROUNDS = 4
_TRIES = 5


class _StoredPace(msgspec.Struct, frozen=True):
    """A measurement, and a key that names the program and device of it."""

    key: str
    measured_at_s: float
    pace: Pace


def probe_pace(device: torch.device, threads: int, file: Path, *, is_shared: bool = False) -> Pace:
    """Return the recently measured pace of the same program, or measure it now, in about a second.

    If several nodes share this machine they would measure each other. Then only the self-test runs, and speeds are
    assumed, the same for all of them.
    """
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    key = f"{torch.__version__} {name} {threads} {is_shared}"
    if stored := _read(file, key):
        return stored
    if is_shared:
        pace = Pace(speeds={precision: _speed(report) for precision, report in self_test(device).items()})
    else:
        reports = measure(device, *(_CPU_SHAPE if device.type == "cpu" else _GPU_SHAPE), threads)
        pace = Pace(
            speeds={precision: _speed(report) for precision, report in reports.items()},
            dispatch_s=_dispatch_s(device),
            memory_bytes_per_s=read_bytes_per_s(device, threads),
        )
    _keep(file, _StoredPace(key, time.time(), pace))
    return pace


def _speed(report: KernelReport) -> Speed:
    seconds = tuple(report.seconds_per_million) if report.weights else ()
    return Speed(report.rows, seconds, report.is_usable, report.reason[:TEXT_CHARACTERS_MAX])


def _dispatch_s(device: torch.device) -> float:
    """Return a layer's cost before any arithmetic, in seconds.

    It times many small kernel calls on the calling thread's clock.
    """
    rows, weight = torch.randn(1, 64, device=device), torch.ones(64, device=device)
    _small_calls(rows, weight)
    tries = []
    for _ in range(_TRIES):
        began_s = time.thread_time()
        for _ in range(_LAYER_ROUNDS * 10):
            _small_calls(rows, weight)
        tries.append((time.thread_time() - began_s) / 10)
    return min(tries)


def _small_calls(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Run a few small kernels on `rows` [1, 64] with `weight` [64]. Return a tensor [1, 1, 1, 64]."""
    normed = F.rms_norm(rows, (64,), weight)
    turned = normed.mul(2).add_(rows)
    return F.silu(turned).view(1, 1, 64).transpose(0, 1)


def _read(file: Path, key: str) -> Pace | None:
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=_StoredPace)
    except (OSError, msgspec.DecodeError):
        return None
    is_fresh = 0 <= time.time() - stored.measured_at_s < _VALID_S
    return stored.pace if stored.key == key and is_fresh else None


def _keep(file: Path, stored: _StoredPace) -> None:
    """Store the measurement if possible. On a full disk the next start measures again."""
    try:
        partial = file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(stored))
        partial.replace(file)
    except OSError:
        file.unlink(missing_ok=True)
