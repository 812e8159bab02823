"""The W4A4 layer: its product, its straight-through gradients worked in float64, autocast and torch.compile."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional
from trainer.reference_nvfp4 import nvfp4

from triage_monitor.errors import InputError
from triage_monitor.trainer.linear import QuantizedLinear, quantized_linear
from triage_monitor.trainer.nvfp4 import QuantOptions, dequantize, fake_quantize, quantize
from triage_monitor.trainer.scaled import FP8_BLOCK, FP8_ROW, FP8_TILE, MXFP4, MXFP8, ScaledOptions
from triage_monitor.trainer.scaled import dequantize as dequantize_scaled
from triage_monitor.trainer.scaled import quantize as quantize_scaled

ROW = QuantOptions(row_scaled_activation=True)
TENSOR = QuantOptions()
TILE = QuantOptions(tile_2d=True)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("activation", [TENSOR, ROW, None])
@pytest.mark.parametrize("weights", [TENSOR, TILE, QuantOptions(four_over_six=True), None])
def test_the_forward_is_the_product_of_the_dequantised_operands_bit_for_bit(
    activation: QuantOptions | None, weights: QuantOptions | None
) -> None:
    x, w, b = draw(3, 5, 64, seed=1), draw(32, 64, seed=2), draw(32, seed=3)
    x_q = x if activation is None else dequantize(quantize(x, activation))
    w_q = w if weights is None else dequantize(quantize(w, weights))
    got = quantized_linear(x, w, b, activation=activation, weight_options=weights)
    assert torch.equal(got, functional.linear(x_q, w_q, b))


def test_gradients_are_those_of_the_dequantised_product_worked_in_float64() -> None:
    x, w, b, slope = draw(7, 64, seed=4), draw(32, 64, seed=5), draw(32, seed=6), draw(7, 32, seed=7)
    x_q = nvfp4(x.numpy()).values.astype(np.float64)
    w_q = nvfp4(w.numpy(), tile=True).values.astype(np.float64)
    dy = slope.numpy().astype(np.float64)
    leaves = [value.double().requires_grad_() for value in (x, w, b)]
    out = quantized_linear(*leaves, activation=TENSOR, weight_options=TILE)
    assert out.dtype == torch.float64
    (out * slope.double()).sum().backward()
    np.testing.assert_allclose(out.detach().numpy(), x_q @ w_q.T + b.numpy(), rtol=1e-12, atol=1e-12)
    for leaf, expected in zip(leaves, (dy @ w_q, dy.T @ x_q, dy.sum(0)), strict=True):
        np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert not np.allclose(leaves[0].grad.numpy(), dy @ w.numpy(), rtol=1e-3)


def test_a_weight_quantised_beforehand_gives_the_same() -> None:
    x, w = draw(4, 32, seed=8), draw(16, 32, seed=9)
    once = fake_quantize(w, TILE)
    assert torch.equal(
        quantized_linear(x, once, activation=ROW, weight_options=None),
        quantized_linear(x, w, activation=ROW, weight_options=TILE),
    )


def test_row_scaled_activations_do_not_depend_on_the_rest_of_the_batch() -> None:
    x, w = draw(6, 64, seed=10), draw(32, 64, seed=11)
    x[3] *= 1000
    alone = quantized_linear(x[:1], w, activation=ROW, weight_options=TENSOR)
    together = quantized_linear(x, w, activation=ROW, weight_options=TENSOR)
    torch.testing.assert_close(together[:1], alone, rtol=1e-6, atol=1e-6)
    per_tensor = quantized_linear(x, w, activation=TENSOR, weight_options=TENSOR)
    assert not torch.allclose(per_tensor[:1], alone, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_under_autocast_the_product_is_float32_and_the_result_in_the_autocast_type(dtype: torch.dtype) -> None:
    x = draw(4, 64, seed=12, dtype=dtype).requires_grad_()
    layer = QuantizedLinear(64, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, layer(x.float()).bfloat16())
    got.float().sum().backward()
    assert x.grad.dtype == dtype
    assert layer.weight.grad.dtype == torch.float32
    expected = fake_quantize(layer.weight.detach(), TILE).sum(0).to(dtype)
    torch.testing.assert_close(x.grad[0], expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_a_bfloat16_layer_quantises_without_a_second_rounding() -> None:
    layer = QuantizedLinear(64, 32, dtype=torch.bfloat16)
    x = draw(4, 64, seed=13, dtype=torch.bfloat16)
    w_q, x_q = fake_quantize(layer.weight.float(), TILE), fake_quantize(x.float(), TENSOR)
    assert torch.equal(layer(x), functional.linear(x_q, w_q, layer.bias.float()).bfloat16())


def test_the_module_trains_its_master_weights() -> None:
    torch.manual_seed(14)
    layer = QuantizedLinear(32, 16, activation=ROW)
    target, x = draw(64, 16, seed=15), draw(64, 32, seed=16)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]
    assert "row_scaled_activation=True" in repr(layer)
    assert set(layer.state_dict()) == {"weight", "bias"}


def test_stochastic_rounding_draws_from_the_given_generator() -> None:
    x, w = draw(4, 32, seed=17), draw(16, 32, seed=18)
    noisy = QuantOptions(stochastic_rounding=True)
    first, second, other = (
        quantized_linear(x, w, activation=noisy, weight_options=None, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_widths_without_whole_blocks_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"multiple of 16; shape is \[24, 32\]"):
        quantized_linear(draw(2, 32, seed=19), draw(24, 32, seed=20), activation=TENSOR, weight_options=TILE)
    with pytest.raises(InputError, match=r"multiple of 16; shape is \[2, 40\]"):
        QuantizedLinear(40, 16)(draw(2, 40, seed=21))


def _compiled_equals_eager(backend: str) -> None:
    torch.compiler.reset()
    layer = QuantizedLinear(64, 32)
    x = draw(5, 64, seed=22).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own deprecations
        compiled = torch.compile(layer, backend=backend, fullgraph=True)
        got = compiled(x)
        got.square().sum().backward()
        with torch.no_grad():
            inference = compiled(x)
    gradients = x.grad.clone(), layer.weight.grad.clone()
    x.grad = layer.weight.grad = None
    expected = layer(x)
    expected.square().sum().backward()
    assert torch.equal(got, expected)
    assert torch.equal(inference, expected)
    assert torch.equal(gradients[0], x.grad)
    assert torch.equal(gradients[1], layer.weight.grad)


def test_a_compiled_layer_is_one_graph_with_the_same_bits() -> None:
    _compiled_equals_eager("aot_eager")


@pytest.mark.slow
def test_a_layer_compiled_to_machine_code_has_the_same_bits() -> None:
    _compiled_equals_eager("inductor")


@pytest.mark.parametrize(
    ("activation", "weights"), [(FP8_ROW, FP8_TILE), (FP8_BLOCK, FP8_TILE), (MXFP8, MXFP8), (MXFP4, MXFP4)]
)
def test_other_formats_take_the_same_layer(activation: ScaledOptions, weights: ScaledOptions) -> None:
    x, w = draw(5, 64, seed=31), draw(16, 64, seed=32)
    leaf = w.clone().requires_grad_()
    out = quantized_linear(x, leaf, activation=activation, weight_options=weights)
    rounded_x = dequantize_scaled(quantize_scaled(x, activation))
    assert torch.equal(out, rounded_x @ dequantize_scaled(quantize_scaled(w, weights)).T)
    out.sum().backward()
    assert torch.allclose(leaf.grad, rounded_x.sum(0).expand(16, 64))
