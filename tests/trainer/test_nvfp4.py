"""Codes and scales against ml_dtypes and torchao, the hand-worked cases, odd input, and the options."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from trainer.reference_nvfp4 import Reference, nvfp4, to_e2m1, to_e4m3

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.trainer.nvfp4 import (
    Nvfp4Recipe,
    QuantOptions,
    _round_e2m1,
    _round_e4m3,
    dequantize,
    fake_quantize,
    fake_quantize_torch,
    quantize,
)

NAN, INF = math.nan, math.inf
UNIT = QuantOptions(static_amax=6.0 * 448.0)  # S = 1

OPTIONS = {
    "tensor": (QuantOptions(), {}),
    "tensor, floor": (QuantOptions(scale_floor="normal"), {"smallest_scale": 2.0**-6}),
    "row": (QuantOptions(row_scaled_activation=True), {"rows": True}),
    "static": (QuantOptions(static_amax=1.5), {"static_amax": 1.5}),
    "tile": (QuantOptions(tile_2d=True), {"tile": True}),
    "tile, static, floor": (
        QuantOptions(tile_2d=True, static_amax=2.0, scale_floor="normal"),
        {"tile": True, "static_amax": 2.0, "smallest_scale": 2.0**-6},
    ),
    "4over6": (QuantOptions(four_over_six=True), {"four_over_six": (256, "MSE")}),
    "4over6, MAE, 448": (
        QuantOptions(four_over_six=True, four_over_six_bound=448, four_over_six_error="MAE"),
        {"four_over_six": (448, "MAE")},
    ),
    "4over6, row": (
        QuantOptions(four_over_six=True, row_scaled_activation=True),
        {"rows": True, "four_over_six": (256, "MSE")},
    ),
    "4over6, tile": (
        QuantOptions(four_over_six=True, tile_2d=True),
        {"tile": True, "four_over_six": (256, "MSE")},
    ),
}


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(20)
    normal = rng.standard_normal((96, 192)).astype(np.float32)
    sparse = np.where(rng.random(normal.shape) < 0.6, np.float32(0), normal)
    sparse[3:40, 16:64] = 0
    return {
        "normal": normal,
        "rows scaled by e^(2N)": normal * np.exp(2 * rng.standard_normal((96, 1))).astype(np.float32),
        "elements scaled by e^(6N)": (normal * np.exp(6 * rng.standard_normal(normal.shape))).astype(np.float32),
        "mostly zero": sparse,
        "all zero": np.zeros((32, 32), np.float32),
        "negative zero": np.full((16, 32), -0.0, np.float32),
        "denormal": normal * np.float32(1e-40),
        "denormals beside ones": np.where(rng.random(normal.shape) < 0.9, normal * np.float32(1e-41), np.sign(normal)),
        "below the smallest tensor scale": normal * np.float32(1e-33),
        "near the largest float": np.clip(normal, -1, 1) * np.finfo(np.float32).max,
        "on the grid": np.tile(np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6]), (16, 4)),
        "on the ties": np.tile(np.float32([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]), (16, 4)),
    }


def assert_same(result: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("kind", inputs())
@pytest.mark.parametrize("name", OPTIONS)
def test_codes_scales_and_values_equal_ml_dtypes(name: str, kind: str) -> None:
    x = inputs()[kind]
    options, arguments = OPTIONS[name]
    expected: Reference = nvfp4(x, **arguments)
    got = quantize(torch.from_numpy(x), options)
    assert_same(got.tensor_scale, expected.tensor_scale)
    assert_same(got.block_scales, expected.block_scales)
    assert_same(got.codes, expected.codes)
    for values in (dequantize(got), fake_quantize(torch.from_numpy(x), options)):
        assert_same(values, expected.values)
        np.testing.assert_array_equal(np.signbit(values.numpy()), np.signbit(expected.values))


def test_a_block_worked_by_hand() -> None:
    x = [0, 0.2, 0.25, 0.26, 0.74, 0.75, 0.76, 1.24, 1.25, 1.26, 1.75, 2.5, 3.5, 5.0, 5.01, -6]
    codes = [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 6, 6, 7, 15]
    values = [0, 0, 0, 0.5, 0.5, 1, 1, 1, 1, 1.5, 2, 2, 4, 4, 6, -6]
    got = quantize(torch.tensor(x), UNIT)
    assert got.codes.tolist() == codes
    assert got.block_scales.tolist() == [1.0]
    assert dequantize(got).tolist() == values


def test_two_scales_worked_by_hand() -> None:
    x = torch.zeros(4, 16)
    x[0, 0], x[1, 3], x[2, 5], x[3, 7] = 100.0, 3.0, 1e-4, 0.3
    got = quantize(x, QuantOptions(scale_floor="normal"))
    assert got.tensor_scale.item() == pytest.approx(100 / 2688, rel=1e-7)
    # 3 / 6 / S = 13.44 -> 13; 1e-4 lies under the floor; 0.3 / 6 / S = 1.344 -> 1.375
    assert got.block_scales.flatten().tolist() == [448.0, 13.0, 2.0**-6, 1.375]
    assert quantize(x, QuantOptions()).block_scales.flatten().tolist() == [448.0, 13.0, 0.0, 1.375]


def test_e4m3_rounding_agrees_at_every_code_and_on_both_sides_of_every_tie() -> None:
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ties = (codes[1:] + codes[:-1]) / 2
    near = np.concatenate([codes, ties])
    near = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(1e9))])
    dense = np.linspace(0, 448, 200_001, dtype=np.float32)
    tiny = np.linspace(0, 0.02, 100_001, dtype=np.float32)
    x = np.clip(np.concatenate([near, dense, tiny]), 0, 448).astype(np.float32)
    assert len(set(codes.tolist())) == 127
    assert_same(_round_e4m3(torch.from_numpy(x)), to_e4m3(x))


def test_e2m1_rounding_agrees_at_every_code_and_on_both_sides_of_every_tie() -> None:
    grid = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    near = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2])
    near = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(9))])
    x = np.concatenate([near, np.linspace(0, 6, 120_001, dtype=np.float32)]).clip(0, 6).astype(np.float32)
    for signed in (x, -x):
        assert_same(_round_e2m1(torch.from_numpy(signed)), to_e2m1(signed)[1])


@pytest.mark.parametrize("options", [option for option, _ in OPTIONS.values()])
def test_a_nan_makes_its_own_block_nan_and_changes_no_other(options: QuantOptions) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(4))
    x[5, 20] = 0.001  # not the amax of anything
    clean = fake_quantize(x, options)
    x[5, 20] = NAN
    got = quantize(x, options)
    rows = slice(0, 16) if options.tile_2d else slice(5, 6)
    clean[rows, 16:32] = NAN
    for values in (fake_quantize(x, options), fake_quantize_torch(x, options), dequantize(got)):
        torch.testing.assert_close(values, clean, rtol=0, atol=0, equal_nan=True)
    assert got.block_scales.isnan().sum() == 1
    assert got.tensor_scale.isfinite().all()
    assert int(got.codes[5, 20]) == 0


@pytest.mark.parametrize(
    "options", [QuantOptions(), QuantOptions(row_scaled_activation=True), QuantOptions(tile_2d=True)]
)
def test_an_infinity_saturates_and_leaves_the_other_blocks(options: QuantOptions) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(5))
    x[3, 50] = 8.0  # the amax of tensor and row, not in the block of the infinity
    x[3, 1] = 0.001
    clean = fake_quantize(x, options)
    x[3, 1] = -INF
    got = fake_quantize(x, options)
    torch.testing.assert_close(got, fake_quantize_torch(x, options), rtol=0, atol=0)
    assert got.isfinite().all()
    assert got[3, 1].item() == pytest.approx(-8.0, rel=1e-6)
    own = torch.zeros_like(x, dtype=torch.bool)
    own[slice(0, 16) if options.tile_2d else 3, 0:16] = True
    torch.testing.assert_close(got[~own], clean[~own], rtol=0, atol=0)


def test_a_tensor_of_nothing_but_non_finite_values_is_defined() -> None:
    x = torch.full((1, 32), INF)
    x[0, 16:] = NAN
    got = fake_quantize(x, QuantOptions())
    assert got[0, :16].tolist() == [2.0**-117 * 2688] * 16
    assert got[0, 16:].isnan().all()


@pytest.mark.parametrize("shape", [(0, 16), (3, 0), (0,), (2, 0, 32)])
@pytest.mark.parametrize(
    "options", [QuantOptions(), QuantOptions(row_scaled_activation=True), QuantOptions(four_over_six=True)]
)
def test_an_empty_tensor_stays_empty(options: QuantOptions, shape: tuple[int, ...]) -> None:
    assert fake_quantize(torch.zeros(shape), options).shape == shape
    assert dequantize(quantize(torch.zeros(shape), options)).shape == shape


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 20), QuantOptions(), r"last dimension must be a multiple of 16; shape is \[4, 20\]"),
        ((), QuantOptions(), r"last dimension must be a multiple of 16; shape is \[\]"),
        ((20, 16), QuantOptions(tile_2d=True), r"last two dimensions must be a multiple of 16; shape is \[20, 16\]"),
        ((16,), QuantOptions(tile_2d=True), r"last two dimensions must be a multiple of 16; shape is \[16\]"),
    ],
)
def test_a_shape_without_whole_blocks_is_named(shape: tuple[int, ...], options: QuantOptions, message: str) -> None:
    for function in (fake_quantize, fake_quantize_torch, quantize):
        with pytest.raises(InputError, match=message) as caught:
            function(torch.zeros(shape), options)
        assert caught.value.reason == "bad_shape"


def test_integers_are_refused() -> None:
    with pytest.raises(InputError, match=r"torch\.int64"):
        fake_quantize(torch.zeros(16, dtype=torch.int64), QuantOptions())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [QuantOptions(), QuantOptions(tile_2d=True), QuantOptions(four_over_six=True)])
def test_other_float_types_are_quantised_as_float32_and_returned_in_their_own(
    dtype: torch.dtype, options: QuantOptions
) -> None:
    x = torch.randn(2, 32, 48, generator=torch.Generator().manual_seed(6)).to(dtype)
    got = fake_quantize(x, options)
    assert got.dtype == dtype
    assert torch.equal(got, fake_quantize_torch(x.float(), options).to(dtype))


def test_leading_dimensions_are_rows_and_tiles_stay_within_one_matrix() -> None:
    x = torch.randn(3, 32, 64, generator=torch.Generator().manual_seed(7))
    x[1] *= 50
    by_row = quantize(x, QuantOptions(row_scaled_activation=True))
    assert by_row.tensor_scale.shape == (3, 32, 1)
    assert by_row.block_scales.shape == (3, 32, 4)
    tiles = quantize(x, QuantOptions(tile_2d=True, static_amax=200.0))
    assert tiles.block_scales.shape == (3, 2, 4)
    for i in range(3):
        alone = quantize(x[i], QuantOptions(tile_2d=True, static_amax=200.0))
        assert torch.equal(tiles.codes[i], alone.codes)


def test_strided_input_gives_what_its_copy_gives() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(8)).t()
    assert torch.equal(fake_quantize(x, QuantOptions()), fake_quantize(x.contiguous(), QuantOptions()))
    assert torch.equal(fake_quantize_torch(x, QuantOptions()), fake_quantize(x, QuantOptions()))


def test_the_gradient_is_the_identity() -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(9), requires_grad=True)
    slope = torch.randn(4, 32, generator=torch.Generator().manual_seed(10))
    got = fake_quantize(x, QuantOptions(static_amax=0.1))  # most elements saturate: they pass too
    (got * slope).sum().backward()
    assert torch.equal(x.grad, slope)
    assert torch.equal(got, fake_quantize(x.detach(), QuantOptions(static_amax=0.1)))


def test_the_input_is_left_alone() -> None:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(11))
    before = x.clone()
    for options, _ in OPTIONS.values():
        fake_quantize(x, options)
        quantize(x, options)
    assert torch.equal(x, before)


def test_four_over_six_never_errs_more_than_mapping_to_six() -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(12))
    six = QuantOptions(four_over_six=True)
    chosen = (fake_quantize(x, six) - x).square().double().reshape(-1, 16).sum(1)
    # A bound of 256 is S for amax * 448 / 256 under the plain form.
    plain = QuantOptions(static_amax=x.abs().max().item() * 448 / 256)
    to_six = (fake_quantize(x, plain) - x).square().double().reshape(-1, 16).sum(1)
    assert (chosen <= to_six * (1 + 1e-5)).all()
    assert (chosen < to_six * 0.99).float().mean() > 0.2
    assert chosen.sum() < 0.95 * to_six.sum()


def test_four_over_six_takes_the_map_to_four_for_a_block_that_needs_a_five() -> None:
    # With its amax on 6 the second element would want 4.5 of 6, midway in the gap; with its amax on 4 it wants 3.
    block = torch.zeros(16)
    block[0], block[1] = 4.0, 3.0
    options = QuantOptions(four_over_six=True, static_amax=6.0 * 256.0)  # S = 1
    got = quantize(block, options)
    assert got.block_scales.tolist() == [1.0]
    assert torch.equal(dequantize(got), block)


def test_stochastic_rounding_is_unbiased_and_keeps_to_the_two_neighbours() -> None:
    values = torch.tensor([6.0, 0.1, -0.1, 0.3, 0.49, 0.7, -1.2, 1.6, 1.9, 2.2, -2.9, 3.3, 3.99, 4.4, -5.5, 5.9])
    below = torch.tensor([6.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 1.5, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0])
    above = torch.tensor([6.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.5, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 6.0, 6.0, 6.0])
    count = 40_000
    options = QuantOptions(static_amax=2688.0, stochastic_rounding=True)
    got = fake_quantize(values.repeat(count, 1), options, torch.Generator().manual_seed(13))
    size = got.abs()
    assert ((size == below) | (size == above)).all()
    assert (torch.sign(got) * torch.sign(values) >= 0).all()
    up = (values.abs() - below) / (above - below).clamp(min=1e-9)
    deviation = (above - below).double() * (up * (1 - up)).double().sqrt() / math.sqrt(count)
    error = (got.double().mean(0) - values.double()).abs()
    assert (error <= 4.5 * deviation).all()


def test_stochastic_rounding_never_moves_what_is_on_the_grid() -> None:
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0])
    options = QuantOptions(static_amax=2688.0, stochastic_rounding=True)
    got = fake_quantize(grid.repeat(10_000, 1), options, torch.Generator().manual_seed(14))
    assert (got == grid).all()


def test_stochastic_rounding_repeats_with_its_generator() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(15))
    options = QuantOptions(stochastic_rounding=True)
    first, second, other = (fake_quantize(x, options, torch.Generator().manual_seed(seed)) for seed in (16, 16, 17))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(first, dequantize(quantize(x, options, torch.Generator().manual_seed(16))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale_floor": "none"}, "scale_floor"),
        ({"static_amax": 0.0}, "static_amax"),
        ({"static_amax": NAN}, "static_amax"),
        ({"static_amax": INF}, "static_amax"),
        ({"four_over_six_bound": 300}, "four_over_six_bound"),
        ({"four_over_six_error": "mse"}, "four_over_six_error"),
        ({"row_scaled_activation": True, "tile_2d": True}, "row_scaled_activation"),
        ({"row_scaled_activation": True, "static_amax": 1.0}, "row_scaled_activation"),
    ],
)
def test_a_wrong_option_fails_when_it_is_made(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QuantOptions(**fields)


def test_the_recipe_translates_transformer_engines_names() -> None:
    default = Nvfp4Recipe()
    assert default.activation == QuantOptions(four_over_six_error="MAE")
    assert default.weight == QuantOptions(tile_2d=True, four_over_six_error="MAE")
    assert default.gradient == QuantOptions(stochastic_rounding=True)
    recipe = Nvfp4Recipe(
        disable_2d_quantization=True,
        disable_stochastic_rounding=True,
        row_scaled_activation=True,
        nvfp4_4over6="activations",
        nvfp4_4over6_e4m3_use_256="weights",
        nvfp4_4over6_err_mode="MSE",
    )
    assert recipe.activation == QuantOptions(row_scaled_activation=True, four_over_six=True, four_over_six_bound=448)
    assert recipe.weight == QuantOptions()
    assert recipe.gradient == QuantOptions()


@pytest.mark.parametrize("field", ["nvfp4_4over6", "nvfp4_4over6_e4m3_use_256", "nvfp4_4over6_err_mode"])
def test_an_unknown_word_in_the_recipe_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Nvfp4Recipe(**{field: "weight"})
