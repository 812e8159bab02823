"""torchao 0.18 as a second opinion: no code and no scale may differ but under its scale floor."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch

from triage_monitor.trainer.nvfp4 import QuantOptions, dequantize, fake_quantize, pack, quantize

pytest.importorskip("torchao")


@pytest.fixture(scope="module")
def torchao() -> Any:
    os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats import nvfp4_tensor
    return nvfp4_tensor


def wide(scale: float, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[256, 256] normals, rows scaled by e^(scale * N), some zeros."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 256, generator=draw) * torch.exp(scale * torch.randn(256, 1, generator=draw))
    x[torch.rand(256, 256, generator=draw) < 0.1] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 2.0, 6.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_code_no_scale_and_no_value_differs(torchao: Any, scale: float, seed: int, dtype: torch.dtype) -> None:
    x = wide(scale, seed, dtype)
    theirs = torchao.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=torchao.per_tensor_amax_to_scale(x.abs().max()))
    ours = quantize(x, QuantOptions(scale_floor="normal"))
    assert torch.equal(theirs.qdata.view(torch.uint8), pack(ours.codes))
    assert torch.equal(theirs.scale.float().reshape(ours.block_scales.shape), ours.block_scales)
    assert torch.equal(theirs.dequantize(torch.float32), dequantize(ours))
    assert torch.equal(theirs.dequantize(), fake_quantize(x, QuantOptions(scale_floor="normal")))


def test_with_the_subnormal_floor_only_blocks_under_two_to_the_minus_six_differ(torchao: Any) -> None:
    x = wide(2.0, 3)
    scales, codes = torchao.nvfp4_quantize(x, 16, torchao.per_tensor_amax_to_scale(x.abs().max()))
    ours = quantize(x, QuantOptions(scale_floor="subnormal"))
    theirs = scales.float().reshape(ours.block_scales.shape)
    differs = theirs != ours.block_scales
    assert differs.any()
    assert not differs.all()
    assert (theirs[differs] == 2.0**-6).all()
    assert (ours.block_scales[differs] < 2.0**-6).all()
    codes_differ = (codes.reshape(pack(ours.codes).shape) != pack(ours.codes)).reshape(256, 16, 8).any(-1)
    assert not (codes_differ & ~differs).any()


def test_a_static_scale_agrees_where_elements_saturate(torchao: Any) -> None:
    x = wide(1.0, 4)
    scales, codes = torchao.nvfp4_quantize(x, 16, torch.tensor(0.5, dtype=torch.float32) / 2688)
    ours = quantize(x, QuantOptions(static_amax=0.5, scale_floor="normal"))
    assert (ours.block_scales == 448).any()
    assert torch.equal(scales.float().reshape(ours.block_scales.shape), ours.block_scales)
    assert torch.equal(codes.reshape(pack(ours.codes).shape), pack(ours.codes))
