"""Recorded vectors: inputs, packed codes, E4M3 scale bytes and tensor scales that no change may alter.

golden/nvfp4_vectors.npz was made by `write_golden`, which records what `quantize` gives only after the ml_dtypes
reference and, for 1x16 blocks with the 2^-6 floor, torchao gave the same. To make it again after a change of format:

    PYTHONPATH=tests python -c "from trainer.test_nvfp4_golden import write_golden; write_golden()"
"""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from trainer.reference_nvfp4 import nvfp4

from triage_monitor.trainer.nvfp4 import QuantOptions, dequantize, fake_quantize, pack, quantize

GOLDEN = Path(__file__).parent / "golden" / "nvfp4_vectors.npz"
CASES = {
    "block": (QuantOptions(), {}),
    "block_floor": (QuantOptions(scale_floor="normal"), {"smallest_scale": 2.0**-6}),
    "row": (QuantOptions(row_scaled_activation=True), {"rows": True}),
    "tile": (QuantOptions(tile_2d=True), {"tile": True}),
    "static": (QuantOptions(static_amax=2.0), {"static_amax": 2.0}),
    "four_over_six": (QuantOptions(four_over_six=True), {"four_over_six": (256, "MSE")}),
    "four_over_six_tile": (
        QuantOptions(four_over_six=True, tile_2d=True),
        {"four_over_six": (256, "MSE"), "tile": True},
    ),
}


def golden_input() -> np.ndarray:
    """[32, 64]: normals, rows over many binades, a zero block, ties, signed zeros, denormals."""
    rng = np.random.default_rng(1118)
    x = rng.standard_normal((32, 64)).astype(np.float32)
    x[16:] *= np.exp(2.5 * rng.standard_normal((16, 1))).astype(np.float32)
    x[3, 16:32] = 0.0
    x[4, :16] = -0.0
    x[5, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5]
    x[6, :16] *= np.float32(1e-39)
    return x


def write_golden(path: Path = GOLDEN) -> None:
    """Writes the vectors; AssertionError if a second implementation disagrees. Needs torchao."""
    os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    x = torch.from_numpy(golden_input())
    arrays = {"input": x.numpy()}
    for name, (options, arguments) in CASES.items():
        got = quantize(x, options)
        second = nvfp4(x.numpy(), **arguments)
        np.testing.assert_array_equal(got.codes.numpy(), second.codes)
        np.testing.assert_array_equal(got.block_scales.numpy(), second.block_scales)
        arrays[f"{name}_codes"] = pack(got.codes).numpy()
        arrays[f"{name}_scales"] = got.block_scales.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        arrays[f"{name}_tensor_scale"] = got.tensor_scale.numpy()
    scales, codes = nvfp4_quantize(x, 16, per_tensor_amax_to_scale(x.abs().max()))
    np.testing.assert_array_equal(arrays["block_floor_codes"], codes.reshape(32, 32).numpy())
    np.testing.assert_array_equal(arrays["block_floor_scales"], scales.reshape(32, 4).view(torch.uint8).numpy())
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize("name", CASES)
def test_recorded_vectors_are_reproduced(name: str) -> None:
    options, _ = CASES[name]
    with np.load(GOLDEN) as golden:
        x = torch.from_numpy(golden["input"])
        codes, scales, tensor_scale = (golden[f"{name}_{part}"] for part in ("codes", "scales", "tensor_scale"))
    got = quantize(x, options)
    np.testing.assert_array_equal(pack(got.codes).numpy(), codes)
    np.testing.assert_array_equal(got.block_scales.numpy(), scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    np.testing.assert_array_equal(got.tensor_scale.numpy(), tensor_scale)
    assert torch.equal(fake_quantize(x, options), dequantize(got))


@pytest.mark.parametrize("name", CASES)
def test_recorded_vectors_are_what_ml_dtypes_gives(name: str) -> None:
    with np.load(GOLDEN) as golden:
        expected = nvfp4(golden["input"], **CASES[name][1])
        low_first = expected.codes[:, 0::2] | (expected.codes[:, 1::2] << 4)
        np.testing.assert_array_equal(golden[f"{name}_codes"], low_first)
        as_bytes = expected.block_scales.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        np.testing.assert_array_equal(golden[f"{name}_scales"], as_bytes)
