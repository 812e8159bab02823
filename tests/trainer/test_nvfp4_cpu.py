"""The fused kernels: the bits of the torch form, used by themselves where they can be, and worth having."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
import torch
from trainer.reference_nvfp4 import to_e2m1, to_e4m3

from triage_monitor.trainer import nvfp4_cpu
from triage_monitor.trainer.nvfp4 import QuantOptions, fake_quantize, fake_quantize_torch

OPTIONS = [
    QuantOptions(),
    QuantOptions(scale_floor="normal"),
    QuantOptions(row_scaled_activation=True),
    QuantOptions(row_scaled_activation=True, scale_floor="normal"),
    QuantOptions(static_amax=0.7),
    QuantOptions(static_amax=1e-36),
    QuantOptions(tile_2d=True),
    QuantOptions(tile_2d=True, scale_floor="normal", static_amax=30.0),
]


def random_input(seed: int) -> torch.Tensor:
    """Random shape and spread; zeros, zero rows and blocks, denormals, huge and non-finite values by turns."""
    rng = np.random.default_rng(seed)
    shape = [int(rng.integers(1, 4)), 16 * int(rng.integers(1, 5)), 16 * int(rng.integers(1, 12))][
        int(rng.integers(2)) :
    ]
    x = rng.standard_normal(shape)
    x *= np.exp(rng.choice([0.0, 2.0, 8.0]) * rng.standard_normal((*shape[:-1], 1)))
    x *= 10.0 ** rng.choice([-41, -34, -20, 0, 0, 0, 15, 33])
    x[rng.random(shape) < rng.choice([0.0, 0.3, 0.95])] = 0.0
    x[..., 1, :] = -0.0
    x[..., 2, :16] = 0.0
    if seed % 3 == 0:
        x[rng.random(shape) < 0.01] = np.inf
        x[rng.random(shape) < 0.01] = -np.inf
        x[rng.random(shape) < 0.01] = np.nan
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.astype(np.float32))


def assert_same_bits(left: torch.Tensor, right: torch.Tensor) -> None:
    """Equal including the sign of zero; any NaN equals any NaN."""
    assert torch.equal(left.isnan(), right.isnan())
    keep = ~left.isnan()
    assert torch.equal(left[keep].view(torch.int32), right[keep].view(torch.int32))


@pytest.mark.parametrize("options", OPTIONS)
def test_the_fused_form_gives_the_bits_of_the_torch_form(options: QuantOptions) -> None:
    for seed in range(120):
        x = random_input(seed)
        fused = torch.full_like(x, 7.0)
        nvfp4_cpu.fake_quantize(x.numpy(), fused.numpy(), options)
        assert_same_bits(fused, fake_quantize_torch(x, options))


def test_the_kernels_e4m3_agrees_at_every_code_and_on_both_sides_of_every_tie() -> None:
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    near = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2])
    near = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(1e9))])
    dense = np.concatenate([np.linspace(0, 448, 100_001), np.linspace(0, 0.02, 100_001), [449, 465, 500, 1e30, np.inf]])
    x = np.concatenate([near, dense]).astype(np.float32)
    rounded = np.array([nvfp4_cpu.round_e4m3(value, np.float32(0)) for value in x])
    np.testing.assert_array_equal(rounded, to_e4m3(x))
    floored = np.array([nvfp4_cpu.round_e4m3(value, np.float32(2.0**-6)) for value in near])
    np.testing.assert_array_equal(floored, to_e4m3(np.maximum(near, np.float32(2.0**-6))))


def test_the_kernels_e2m1_agrees_at_every_code_and_on_both_sides_of_every_tie() -> None:
    grid = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    near = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2])
    near = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(9))])
    x = np.concatenate([near, np.linspace(0, 7, 140_001, dtype=np.float32)]).astype(np.float32)
    x = np.concatenate([x, -x])
    out = np.empty_like(x)
    nvfp4_cpu._round(x.view(np.int32), out.view(np.int32), np.float32(1), np.float32(1))
    np.testing.assert_array_equal(out, to_e2m1(x)[1])
    np.testing.assert_array_equal(np.signbit(out), np.signbit(x))


def test_plain_float32_on_the_cpu_takes_the_fused_form(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[QuantOptions] = []
    fused = nvfp4_cpu.fake_quantize

    def noted(x: np.ndarray, out: np.ndarray, options: QuantOptions) -> None:
        taken.append(options)
        fused(x, out, options)

    monkeypatch.setattr(nvfp4_cpu, "fake_quantize", noted)
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1), requires_grad=True)
    for options in OPTIONS:
        fake_quantize(x, options)  # straight-through
        with torch.no_grad():
            fake_quantize(x, options)
    assert taken == [options for options in OPTIONS for _ in range(2)]
    taken.clear()
    fake_quantize(x.double(), QuantOptions())
    fake_quantize(x.bfloat16(), QuantOptions())
    fake_quantize(x, QuantOptions(four_over_six=True))
    fake_quantize(x, QuantOptions(stochastic_rounding=True))
    assert taken == []


def test_under_vmap_each_sample_has_its_own_tensor_scale() -> None:
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(2)) * torch.tensor([[1.0], [9], [0.1], [30], [2]])
    got = torch.func.vmap(lambda row: fake_quantize(row, QuantOptions()))(x)
    assert torch.equal(got, fake_quantize(x, QuantOptions(row_scaled_activation=True)))


def test_without_a_place_for_a_compile_cache_it_still_works() -> None:
    script = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []
import numpy as np
from triage_monitor.trainer.nvfp4_cpu import fake_quantize
from triage_monitor.trainer.nvfp4_options import QuantOptions
out = np.zeros((1, 16), np.float32)
fake_quantize(np.full((1, 16), 6.0, np.float32), out, QuantOptions(static_amax=2688.0))
print(out.sum())
"""
    quick = {**os.environ, "NUMBA_OPT": "0"}  # compiling is all that takes time here
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False, env=quick
    )
    assert ran.stderr == ""
    assert float(ran.stdout) == 96.0


@pytest.mark.perf
@pytest.mark.parametrize("shape", [(64, 64), (4096, 128)])
def test_the_fused_form_is_at_least_twice_as_fast(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))

    def best_seconds(form: object) -> float:
        times = []
        for _ in range(30):
            start = time.perf_counter()
            form(x, QuantOptions())
            times.append(time.perf_counter() - start)
        return min(times)

    assert best_seconds(fake_quantize_torch) > 2 * best_seconds(fake_quantize)
