"""Measure how close a decoder layer's matrices come to the memory bandwidth, by precision and rows per call."""

import argparse
import functools
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.compute.kernels import read_bytes_per_s, seconds_of
from cluster.compute.linear import Linear, pack
from cluster.models.model_card import PRECISIONS, Precision

CPU = torch.device("cpu")
# The layers together must be far larger than any cache, as a model is.
_PACKED_BYTES_MIN = 2.5e8
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Layer:
    """Matrices of a decoder layer as [out, in]: fused qkv, output, fused gate and up, down."""

    hidden: int
    intermediate: int

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        wide = self.hidden, self.intermediate
        return (2 * wide[0], wide[0]), (wide[0], wide[0]), (2 * wide[1], wide[0]), (wide[0], wide[1])

    @property
    def weights(self) -> int:
        return sum(outs * ins for outs, ins in self.shapes)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench kernels", description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 64, 256])
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    layer = Layer(given.hidden, given.intermediate)
    print(f"hidden {layer.hidden}, intermediate {layer.intermediate}, {given.threads} threads, CPU time")
    print("Weights are those of bf16 files; the share is of the rate at which memory is read right before.")
    print("| precision | rows | us/layer | us/row | weights GB/s | share of read bandwidth | GFLOP/s |")
    print("|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        for precision in given.precisions:
            _measure(layer, precision, given.rows, given.threads)


def _measure(layer: Layer, precision: Precision, rows: list[int], threads: int) -> None:
    layers = [_pack(layer, precision, 0)]
    packed_bytes = sum(linear.weight_bytes for linear in layers[0])
    layers += [_pack(layer, precision, seed) for seed in range(1, int(_PACKED_BYTES_MIN / packed_bytes) + 1)]
    for count in rows:
        inputs = [torch.randn(count, ins) for _, ins in layer.shapes]
        shares, taken_s = [], []
        for _ in range(_ROUNDS):
            bandwidth = read_bytes_per_s(CPU, threads)
            taken_s.append(seconds_of(functools.partial(_run, layers, inputs), CPU) / len(layers))
            shares.append(packed_bytes / taken_s[-1] / bandwidth)
        seconds = statistics.median(taken_s)
        print(
            f"| {precision} | {count} | {1e6 * seconds:.0f} | {1e6 * seconds / count:.0f} "
            f"| {packed_bytes / seconds / 1e9:.1f} | {100 * statistics.median(shares):.0f} % "
            f"| {2 * layer.weights * count / seconds / 1e9:.0f} |",
            flush=True,
        )


def _run(layers: list[list[Linear]], inputs: list[Tensor]) -> Tensor:
    out = inputs[0]
    for linears in layers:
        for linear, rows in zip(linears, inputs, strict=True):
            out = linear(rows)
    return out


def _pack(layer: Layer, precision: Precision, seed: int) -> list[Linear]:
    generator = torch.Generator().manual_seed(seed)
    return [
        pack(torch.randn(outs, ins, generator=generator).mul_(ins**-0.5).bfloat16(), None, precision)
        for outs, ins in layer.shapes
    ]
