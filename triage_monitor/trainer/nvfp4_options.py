"""How a tensor is quantised to NVFP4: `QuantOptions` per tensor, `Nvfp4Recipe` in Transformer Engine's own words.

The recipe takes the option names and defaults of Transformer Engine's `NVFP4BlockScaling` (as of 2.20) and hands out
the options of activations, weights and gradients. It has no `disable_rht`: Hadamard transforms are not emulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from triage_monitor.errors import ConfigError

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
MIN_TENSOR_SCALE = 2.0**-117
SCALE_FLOORS: dict[str, float] = {"subnormal": 0.0, "normal": 2.0**-6}

ScaleFloor = Literal["subnormal", "normal"]
ErrorMode = Literal["MSE", "MAE"]
Scope = Literal["none", "weights", "activations", "all"]


@dataclass(frozen=True, slots=True)
class QuantOptions:
    """How one tensor is quantised. Each field names the recipe option of Transformer Engine that it stands for.

    tile_2d                16x16 tiles over the last two dimensions, not 1x16 blocks (not disable_2d_quantization)
    row_scaled_activation  one float32 scale per row (all leading indices), not one per tensor (same name)
    four_over_six          per block map the largest element to 6 or 4, whichever errs less, ties to 6 (nvfp4_4over6)
    four_over_six_bound    largest s_b for the map to 6; 256 leaves room for the map to 4 (nvfp4_4over6_e4m3_use_256)
    four_over_six_error    "MSE" or "MAE", summed over the block in float32 (nvfp4_4over6_err_mode)
    stochastic_rounding    up with probability equal to the fraction: unbiased unless saturated
                           (not disable_stochastic_rounding)
    scale_floor            "subnormal": s_b may be 2^-9, and 0 below half of that (Transformer Engine);
                           "normal": s_b is at least 2^-6 (torchao)
    static_amax            S from this calibrated amax, not from the tensor's own; larger elements saturate
    """

    tile_2d: bool = False
    row_scaled_activation: bool = False
    four_over_six: bool = False
    stochastic_rounding: bool = False
    scale_floor: ScaleFloor = "subnormal"
    static_amax: float | None = None
    four_over_six_bound: Literal[256, 448] = 256
    four_over_six_error: ErrorMode = "MSE"

    def __post_init__(self) -> None:
        if self.scale_floor not in SCALE_FLOORS:
            raise ConfigError(f"scale_floor must be 'subnormal' or 'normal', not {self.scale_floor!r}")
        if self.static_amax is not None and not 0.0 < self.static_amax < math.inf:
            raise ConfigError(f"static_amax must be positive and finite, not {self.static_amax!r}")
        if self.four_over_six_bound not in (256, 448):
            raise ConfigError(f"four_over_six_bound must be 256 or 448, not {self.four_over_six_bound!r}")
        if self.four_over_six_error not in ("MSE", "MAE"):
            raise ConfigError(f"four_over_six_error must be 'MSE' or 'MAE', not {self.four_over_six_error!r}")
        if self.row_scaled_activation and (self.tile_2d or self.static_amax is not None):
            raise ConfigError("row_scaled_activation excludes tile_2d and static_amax")

    @property
    def scale_divisor(self) -> float:
        """amax / S."""
        return E2M1_MAX * (self.four_over_six_bound if self.four_over_six else E4M3_MAX)


@dataclass(frozen=True, slots=True)
class Nvfp4Recipe:
    """Transformer Engine's recipe by its own option names and defaults; gives the options of each kind of tensor."""

    disable_2d_quantization: bool = False
    disable_stochastic_rounding: bool = False
    row_scaled_activation: bool = False
    nvfp4_4over6: Scope = "none"
    nvfp4_4over6_e4m3_use_256: Scope = "all"
    nvfp4_4over6_err_mode: ErrorMode = "MAE"

    def __post_init__(self) -> None:
        allowed = {"nvfp4_4over6": Scope, "nvfp4_4over6_e4m3_use_256": Scope, "nvfp4_4over6_err_mode": ErrorMode}
        for name, values in allowed.items():
            if getattr(self, name) not in get_args(values):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(values))}, not {getattr(self, name)!r}")

    def _options(self, scope: Scope, **fields: Any) -> QuantOptions:
        return QuantOptions(
            four_over_six=self.nvfp4_4over6 in (scope, "all"),
            four_over_six_bound=256 if self.nvfp4_4over6_e4m3_use_256 in (scope, "all") else 448,
            four_over_six_error=self.nvfp4_4over6_err_mode,
            **fields,
        )

    @property
    def activation(self) -> QuantOptions:
        return self._options("activations", row_scaled_activation=self.row_scaled_activation)

    @property
    def weight(self) -> QuantOptions:
        return self._options("weights", tile_2d=not self.disable_2d_quantization)

    @property
    def gradient(self) -> QuantOptions:
        return QuantOptions(stochastic_rounding=not self.disable_stochastic_rounding)
