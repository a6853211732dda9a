"""A test of which precisions this machine computes correctly, and how fast. It runs once, at a node's start."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.linear import Linear, pack
from cluster.models.model_card import PRECISIONS, Precision

ROWS = (1, 16, 256)
"""Rows per call that are timed: one stream, a full batch of decoding, a chunk of a prompt."""

# The errors of correct kernels stay below a third of these.
_TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2, "int8": 2e-1, "int4": 1.0}
_SELF_TEST_FEATURES = (192, 256)
_CPU_WEIGHTS_MAX = 2**22
_ROUNDS = 7
# Calls between two waits for a GPU. Steps wait for their end alone, so a call's own wait must not count.
_GPU_CALLS = 16
# A call that would take longer than this is skipped; its time is extrapolated from fewer rows.
_CALL_S_MAX = 0.3
_BEYOND_CPU_CACHES_BYTES, _BEYOND_GPU_CACHES_BYTES = 2**26, 2**29


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One precision on one device. Without a measurement `rows` and `call_s` are empty."""

    precision: Precision
    error: float
    """Largest difference to exact products, as a share of the usual value for such a row and channel."""
    is_usable: bool
    reason: str = ""
    """Why it is not usable, in words; empty if it is."""
    rows: tuple[int, ...] = ()
    call_s: tuple[float, ...] = ()
    """Seconds of a call with that many rows, weights not in any cache."""
    weights: int = 0
    """Number of values of the matrix that was timed."""

    @property
    def seconds_per_million(self) -> tuple[float, ...]:
        """Seconds of a call per million weights."""
        return tuple(1e6 * seconds / self.weights for seconds in self.call_s)


def self_test(device: torch.device) -> dict[Precision, KernelReport]:
    """Compare each precision's kernels with fp32 on fixed inputs, at 1 and 16 rows."""
    return {precision: _compare(precision, device) for precision in PRECISIONS}


def measure(device: torch.device, hidden: int, intermediate: int, threads: int) -> dict[Precision, KernelReport]:
    """Return self-test and speeds on a layer's shape, of which CPUs try at most four million weights.

    fp32 is timed on weights that bf16 can hold, as in most files. It takes about a second on one core.
    """
    weights_max = _CPU_WEIGHTS_MAX if device.type == "cpu" else hidden * intermediate
    outs = max(16, min(intermediate, weights_max // hidden) // 16 * 16)
    held, reports = torch.get_num_threads(), self_test(device)
    torch.set_num_threads(threads)
    try:
        weight = torch.randn(outs, hidden, device=device).bfloat16()
        return {
            precision: _timed(report, weight) if report.is_usable else report
            for precision, report in reports.items()
        }
    finally:
        torch.set_num_threads(held)


def read_bytes_per_s(device: torch.device, threads: int) -> float:
    """Return the rate of reading memory far beyond the caches: the limit for decoding one stream."""
    held, memory = torch.get_num_threads(), _beyond_caches(device)
    torch.set_num_threads(threads)
    try:
        return memory.nbytes / min(seconds_of(memory.sum, device) for _ in range(_ROUNDS))
    finally:
        torch.set_num_threads(held)


def _compare(precision: Precision, device: torch.device) -> KernelReport:
    try:
        error = max(_error(precision, device, weight) for weight in _test_weights())
    except (RuntimeError, AttributeError) as missing:
        first_line = str(missing).partition("\n")[0]
        return KernelReport(precision, float("inf"), False, f"{precision} cannot be computed here: {first_line}")
    if error <= _TOLERANCES[precision]:
        return KernelReport(precision, error, True)
    return KernelReport(
        precision,
        error,
        False,
        f"{precision} products on this {device.type} device are off by {error:.2g} of their usual size, "
        f"allowed is {_TOLERANCES[precision]:.2g}",
    )


def _test_weights() -> tuple[Tensor, Tensor]:
    """Return weights that need all of fp32, and weights that fp16 can hold: two kernels on some machines.

    Both are [out, in].
    """
    weight = _random(0, *_SELF_TEST_FEATURES)
    # Make one channel and one row as large as possible: sums that saturate show there.
    weight[3] = weight.abs().max()
    return weight, weight.bfloat16().float()


def _error(precision: Precision, device: torch.device, weight: Tensor) -> float:
    rows = _random(1, 16, weight.shape[1])
    rows[5], rows[6] = rows.abs().max(), 0.0
    bias = _random(3, len(weight))
    expected = F.linear(rows.double(), weight.double(), bias.double())
    linear = pack(weight.to(device), bias.to(device), precision)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    inputs = rows.to(device, dtype)
    usual = torch.outer(rows.norm(dim=1).clamp_min(1.0), weight.norm(dim=1)) / weight.shape[1] ** 0.5
    worst = 0.0
    for products in (linear(inputs), torch.cat([linear(inputs[i : i + 1]) for i in range(len(inputs))])):
        error = ((products.double().cpu() - expected) / usual).abs().max()
        worst = max(worst, float(error.nan_to_num(float("inf"))))
    return worst


def _timed(report: KernelReport, weight: Tensor) -> KernelReport:
    linear = pack(weight, None, report.precision)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(report.precision, torch.float32)
    call_s: list[float] = []
    for count in ROWS:
        expected_s = call_s[-1] * count / ROWS[len(call_s) - 1] if call_s else 0.0
        rows = _random(4, count, weight.shape[1]).to(weight.device, dtype)
        call_s.append(expected_s if expected_s > _CALL_S_MAX else _call_s(linear, rows))
    return dataclasses.replace(report, rows=ROWS, call_s=tuple(call_s), weights=weight.numel())


def _call_s(linear: Linear, rows: Tensor) -> float:
    """Return the seconds of the fastest of a few calls, each after other data has filled the caches."""
    others = _beyond_caches(rows.device)
    linear(rows)
    rounds = _ROUNDS if len(rows) < ROWS[-1] else 2
    best_s = float("inf")
    for _ in range(rounds):
        others.sum()
        best_s = min(best_s, seconds_of(lambda: linear(rows), rows.device))
    return best_s


def seconds_of(work: Callable[[], Tensor], device: torch.device) -> float:
    """Return the seconds that a call computes; its result may have any shape.

    On CPUs this is the calling thread's CPU time, since other processes may use the cores now. On GPUs it is the
    share of a call among many.
    """
    if device.type == "cpu":
        began_s = time.thread_time()
        work()
        return time.thread_time() - began_s
    wait = torch.cuda.synchronize if device.type == "cuda" else torch.mps.synchronize
    wait()
    began_s = time.perf_counter()
    for _ in range(_GPU_CALLS):
        work()
    wait()
    return (time.perf_counter() - began_s) / _GPU_CALLS


def _beyond_caches(device: torch.device) -> Tensor:
    size_bytes = _BEYOND_CPU_CACHES_BYTES if device.type == "cpu" else _BEYOND_GPU_CACHES_BYTES
    return torch.ones(size_bytes // 4, device=device)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
