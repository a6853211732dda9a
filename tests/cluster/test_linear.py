"""Weight formats: the errors of their products, equal bits of a row in any batch, and their sizes."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute import kernels
from cluster.compute.float_linear import HalfHeld, fits_half
from cluster.compute.int_linear import Int8, Int8Matmul, int8_levels
from cluster.compute.kernels import KernelReport, measure, self_test
from cluster.compute.linear import Linear, pack, pack_int4
from cluster.compute.quantize import int4_groups, int8_channels
from cluster.models.model_card import PRECISIONS, Precision

CPU = torch.device("cpu")
ERRORS: dict[Precision, float] = {"fp32": 2e-6, "bf16": 5e-3, "fp16": 5e-4, "int8": 1.5e-2, "int4": 9e-2}
BYTES: dict[Precision, float] = {"fp32": 4.1, "bf16": 2.1, "fp16": 2.1, "int8": 1.2, "int4": 0.7}


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def one_by_one(linear: Linear, rows: Tensor) -> Tensor:
    return torch.cat([linear(rows[at : at + 1]) for at in range(len(rows))])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outs", "ins"), [(96, 160), (96, 256), (33, 50)])
def test_products_are_those_of_fp32_within_the_format(
    precision: Precision, stored: torch.dtype, outs: int, ins: int, device: torch.device
) -> None:
    weight, bias, rows = normal(1, outs, ins).to(stored), normal(2, outs), normal(3, 20, ins)
    weight, bias, rows = weight.to(device), bias.to(device), rows.to(device)
    given = weight.clone()
    for addend in (None, bias):
        linear = pack(weight, addend, precision)
        expected = F.linear(rows, weight.float(), addend)
        assert difference(linear(rows), expected) < ERRORS[precision]
        assert linear(rows.bfloat16()).dtype == torch.bfloat16
        assert linear(rows[:0]).shape == (0, outs)
        assert (linear.in_features, linear.out_features) == (ins, outs)
    assert torch.equal(weight, given), "packing must not touch the caller's weights"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_a_row_has_the_same_bits_in_every_batch(precision: Precision) -> None:
    weight = normal(1, 256, 352).bfloat16()
    rows = normal(2, 70, 352) * normal(3, 70, 1).exp()
    linear = pack(weight, normal(4, 256), precision)
    alone = one_by_one(linear, rows)
    for count in (2, 3, 8, 16, 33, 70):
        assert torch.equal(linear(rows[:count]), alone[:count]), count


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_zeros_and_of_one_huge_value_stay_what_they_are(
    precision: Precision, device: torch.device
) -> None:
    weight, bias = normal(1, 64, 128).bfloat16().to(device), normal(2, 64).to(device)
    rows = torch.zeros(3, 128, device=device)
    rows[1, 5], rows[2] = 1e4, float("nan")
    found = pack(weight, bias, precision)(rows)
    assert difference(found[0], bias) < 5e-3
    assert difference(found[1], 1e4 * weight[:, 5].float()) < 0.2
    assert found[2].isnan().all(), "a broken row must not come out as numbers"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weight_bytes_are_what_the_format_needs(precision: Precision, device: torch.device) -> None:
    weight = normal(1, 512, 512).to(device)
    assert pack(weight, None, precision).weight_bytes <= BYTES[precision] * weight.numel()


def test_kept_matrices_are_not_quantized() -> None:
    weight, rows = normal(1, 64, 64), normal(2, 4, 64)
    for precision in ("int8", "int4"):
        assert difference(pack(weight, None, precision, keep=True)(rows), F.linear(rows, weight)) < 1e-6


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="x86 only")
def test_only_weights_that_fp16_can_hold_are_held_so() -> None:
    halves = normal(1, 64, 64).bfloat16().float()
    assert isinstance(pack(halves * 2.0**-30, None, "fp32"), HalfHeld)
    assert fits_half(normal(1, 64, 64).half())
    assert not fits_half(normal(1, 64, 64))
    assert not fits_half(torch.full((2, 2), float("nan")))
    rows = normal(2, 4, 64)
    tiny = pack(halves * 2.0**-30, None, "fp32")(rows)
    assert difference(tiny * 2.0**30, F.linear(rows, halves)) < 1e-6


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="x86 only")
def test_integer_products_agree_between_kernels() -> None:
    quants, scales = int8_channels(normal(1, 64, 96))
    rows, bias = normal(2, 20, 96), normal(3, 64)
    fast, plain = Int8(quants, scales, bias), Int8Matmul(quants, scales, bias)
    assert difference(fast(rows), plain(rows)) < 1e-4
    narrow = Int8(quants, scales, bias, levels=63)
    assert difference(narrow(rows), plain(rows)) < 2e-2
    assert int8_levels() in (63, 127)


def test_int4_quants_of_a_file_are_kept_quant_by_quant(device: torch.device) -> None:
    quants = torch.randint(0, 16, (48, 128), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    scales, mins = normal(2, 48, 4).abs().bfloat16().float(), torch.zeros(48, 4)
    quants, scales, mins = quants.to(device), scales.to(device), mins.to(device)
    each = torch.eye(128, device=device)
    for least in (8 * scales, mins):
        weight = (quants.view(48, 4, 32) * scales[..., None] - least[..., None]).view(48, 128)
        # One input at a time shows every weight: without sums only the result is rounded.
        found = pack_int4(quants, scales, least)(each)
        assert difference(found.t(), weight) < 3e-3
    odd = pack_int4(quants[:7], scales[:7], mins[:7])
    exact = quants[:7].float() * scales[:7].repeat_interleave(32, 1)
    assert difference(odd(each).t(), exact) < (1e-6 if device.type == "cpu" else 5e-3)


def test_int4_groups_are_chosen_for_what_kernels_keep() -> None:
    weight = normal(1, 64, 256)
    quants, scales, mins = int4_groups(weight)
    assert torch.equal(scales, scales.bfloat16().float())
    assert torch.equal(8 * scales - mins, (8 * scales - mins).bfloat16().float())
    rounded = (quants.view(64, 8, 32) * scales[..., None] - mins[..., None]).view(64, 256)
    assert difference(rounded, weight) < 0.08


def test_every_precision_passes_its_self_test_here(device: torch.device) -> None:
    reports = self_test(device)
    assert set(reports) == set(PRECISIONS)
    assert all(report.is_usable for report in reports.values()), reports


def test_a_wrong_kernel_is_not_usable_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel behaves as if sums saturated: results of the widest rows are too small."""

    def saturating(weight: Tensor, bias: Tensor | None, precision: Precision) -> Linear:
        exact = pack(weight, bias, precision)
        bound = 12 * weight.norm(dim=1).median() * 16

        class Saturating:
            in_features, out_features, weight_bytes = exact.in_features, exact.out_features, exact.weight_bytes

            def __call__(self, rows: Tensor) -> Tensor:
                return exact(rows).clamp(-bound, bound)

        return Saturating()

    monkeypatch.setattr(kernels, "pack", saturating)
    report = self_test(CPU)["int8"]
    assert not report.is_usable
    assert "int8 products on this cpu device are off by" in report.reason


def test_a_measurement_has_a_time_for_each_number_of_rows(device: torch.device) -> None:
    reports = measure(device, 128, 256, torch.get_num_threads())
    for report in reports.values():
        assert report.rows == kernels.ROWS
        assert len(report.seconds_per_million) == len(report.rows)
        assert all(call_s > 0 for call_s in report.call_s)
    assert dataclasses.replace(reports["int8"], rows=(), call_s=()) == KernelReport(
        "int8", reports["int8"].error, is_usable=True, weights=256 * 128
    )
