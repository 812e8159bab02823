"""FP8, MXFP8 and MXFP4: codes and values of ml_dtypes' casts, and of torchao's where it has the format."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer.reference_scaled import scaled

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.trainer import scaled_cpu
from triage_monitor.trainer.scaled import (
    FP8_BLOCK,
    FP8_ROW,
    FP8_TENSOR,
    FP8_TILE,
    MXFP4,
    MXFP8,
    ScaledOptions,
    dequantize,
    fake_quantize,
    quantize,
)

GOLDEN = Path(__file__).parent / "golden" / "scaled_vectors.npz"
FORMATS = {
    "fp8_tensor": FP8_TENSOR,
    "fp8_row": FP8_ROW,
    "fp8_block": FP8_BLOCK,
    "fp8_tile": FP8_TILE,
    "mxfp8": MXFP8,
    "mxfp8_ceil": ScaledOptions("e4m3", "e8m0", (1, 32), "ceil"),
    "mxfp4": MXFP4,
    "mxfp4_ceil": ScaledOptions("e2m1", "e8m0", (1, 32), "ceil"),
}


def second(x: np.ndarray, options: ScaledOptions) -> tuple[np.ndarray, np.ndarray]:
    return scaled(x, options.element, options.scale, options.block, options.scale_rounding)


def drawn(rows: int, columns: int, seed: int, spread: float = 2.0) -> np.ndarray:
    """Normals, rows over many binades, some zeros, ties of both grids, a zero row, denormals."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x *= np.exp(spread * rng.standard_normal((rows, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0.0
    x[0, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5]
    x[1] = 0.0
    x[2, :8] = -0.0
    x[3] *= np.float32(1e-38)
    return x


def write_golden(path: Path = GOLDEN) -> None:
    """Records codes and scales once the ml_dtypes reference gave the same codes. After a change of format:
    PYTHONPATH=tests python -c "from trainer.test_scaled import write_golden; write_golden()" """
    x = drawn(16, 160, 77)
    arrays = {"input": x}
    for name, options in FORMATS.items():
        got = quantize(torch.tensor(x), options)
        np.testing.assert_array_equal(got.codes.numpy(), second(x, options)[0])
        arrays |= {f"{name}.codes": got.codes.numpy(), f"{name}.scales": got.scales.numpy()}
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize("name", FORMATS)
def test_golden_vectors_stand(name: str) -> None:
    golden = np.load(GOLDEN)
    got = quantize(torch.tensor(golden["input"]), FORMATS[name])
    np.testing.assert_array_equal(got.codes.numpy(), golden[f"{name}.codes"])
    np.testing.assert_array_equal(got.scales.numpy(), golden[f"{name}.scales"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FORMATS)
def test_codes_and_values_are_those_of_ml_dtypes(name: str, seed: int) -> None:
    x = drawn(140, 160, seed)
    codes, values = second(x, FORMATS[name])
    got = quantize(torch.tensor(x), FORMATS[name])
    np.testing.assert_array_equal(got.codes.numpy(), codes)
    np.testing.assert_array_equal(dequantize(got).numpy(), values)
    np.testing.assert_array_equal(fake_quantize(torch.tensor(x), FORMATS[name]).numpy(), values)


@pytest.fixture(scope="module")
def torchao() -> Any:
    pytest.importorskip("torchao")
    os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.float8 import float8_utils
        from torchao.prototype.mx_formats import mx_tensor
    return float8_utils, mx_tensor


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_ceil", "mxfp4", "mxfp4_ceil"])
def test_mx_codes_scales_and_values_are_torchaos(torchao: Any, name: str) -> None:
    mx, options = torchao[1], FORMATS[name]
    x = torch.tensor(drawn(96, 160, 5))
    x[3] *= 1e10  # torchao keeps scales of at least 2^-126
    kind = torch.float8_e4m3fn if options.element == "e4m3" else torch.float4_e2m1fn_x2
    mode = mx.ScaleCalculationMode.FLOOR if options.scale_rounding == "floor" else mx.ScaleCalculationMode.RCEIL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = mx.MXTensor.to_mx(x, kind, 32, mode)
        values = theirs.dequantize(torch.float32)
    ours = quantize(x, options)
    codes = ours.codes if options.element == "e4m3" else ours.codes[..., 0::2] | (ours.codes[..., 1::2] << 4)
    assert torch.equal(theirs.qdata.view(torch.uint8), codes)
    assert torch.equal(theirs.scale.view(torch.uint8).reshape(ours.scales.shape), exponent_byte(ours.scales))
    assert torch.equal(values, dequantize(ours))


def exponent_byte(scales: torch.Tensor) -> torch.Tensor:
    return torch.tensor(np.round(np.log2(scales.double().numpy())) + 127, dtype=torch.uint8)


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_row"])
def test_fp8_codes_are_torchaos(torchao: Any, name: str) -> None:
    utils = torchao[0]
    x = torch.tensor(drawn(96, 160, 6, spread=0.5))
    amax = x.abs().amax() if name == "fp8_tensor" else x.abs().amax(-1, keepdim=True)
    scale = utils.amax_to_scale(amax, torch.float8_e4m3fn)
    theirs = utils.to_fp8_saturated(x * scale, torch.float8_e4m3fn)
    ours = quantize(x, FORMATS[name])
    assert torch.equal(theirs.view(torch.uint8), ours.codes)
    assert torch.equal(1.0 / scale, ours.scales)


@pytest.mark.parametrize(("name", "kind"), [("fp8_row", 0), ("fp8_block", 0), ("mxfp8", 1), ("mxfp4", 2)])
def test_fused_rows_have_the_same_bits(name: str, kind: int) -> None:
    options = FORMATS[name]
    x = drawn(64, 160, 8, spread=8.0)
    x[5, 3], x[6, 40], x[7, 70] = np.nan, np.inf, -np.inf
    out = np.empty_like(x)
    scaled_cpu.round_spans(x.reshape(-1), out.reshape(-1), 160, options.block[1] or 160, kind)
    np.testing.assert_array_equal(
        out.view(np.int32)[~np.isnan(out)],
        fake_quantize(torch.tensor(x), options).numpy().view(np.int32)[~np.isnan(out)],
    )
    np.testing.assert_array_equal(np.isnan(out), fake_quantize(torch.tensor(x), options).isnan().numpy())


@pytest.mark.parametrize("name", FORMATS)
def test_odd_input_stays_where_it_is(name: str) -> None:
    options, x = FORMATS[name], drawn(8, 64, 9, spread=0.0)
    clean = fake_quantize(torch.tensor(x), options)
    x[4, 40], x[5, 1] = np.nan, np.inf
    got = fake_quantize(torch.tensor(x), options)
    if options.scale == "e8m0":
        assert got[4, 32:].isnan().all() and got.isnan().sum() == 32
    else:
        assert got[4, 40].isnan() and got.isnan().sum() == 1
    assert torch.isfinite(got[5, 1]) and got[5, 1] >= got[5, :32].abs().max()
    untouched = torch.tensor([0, 1, 2, 3, 6, 7])
    if options.block[0] == 1:
        assert torch.equal(got[untouched], clean[untouched])


@pytest.mark.parametrize("name", FORMATS)
def test_gradient_is_the_identity_and_the_dtype_stays(name: str) -> None:
    x = torch.tensor(drawn(8, 64, 10), dtype=torch.bfloat16).requires_grad_()
    out = fake_quantize(x, FORMATS[name])
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("name", FORMATS)
def test_quantising_again_changes_nothing(name: str) -> None:
    once = fake_quantize(torch.tensor(drawn(16, 64, 11)), FORMATS[name])
    if FORMATS[name].scale == "e8m0":
        assert torch.equal(fake_quantize(once, FORMATS[name]), once)
    else:  # 448 / amax is rounded: the last bit of a scale may move
        torch.testing.assert_close(fake_quantize(once, FORMATS[name]), once, rtol=3e-7, atol=0.0)


@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (32,), (2, 3, 64)])
def test_any_shape_that_fits_is_taken(shape: tuple[int, ...]) -> None:
    for options in FORMATS.values():
        if len(shape) > 1 or options.block[0] <= 1:
            assert fake_quantize(torch.ones(shape), options).shape == shape


def test_shapes_and_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of 32"):
        quantize(torch.ones(4, 40), MXFP8)
    with pytest.raises(InputError, match="matrix"):
        quantize(torch.ones(128), FP8_TILE)
    with pytest.raises(InputError, match="floats"):
        quantize(torch.ones(32, dtype=torch.int64), FP8_TENSOR)
    for wrong in ({"element": "e5m2"}, {"scale": "e8m0"}, {"block": (0, 3)}, {"element": "e2m1"}, {"block": (-1, 4)}):
        with pytest.raises(ConfigError):
            ScaledOptions(**wrong)
    with pytest.raises(ConfigError, match="scale_rounding"):
        ScaledOptions("e4m3", "e8m0", (1, 32), "even")  # type: ignore[arg-type]  # wrong on purpose
