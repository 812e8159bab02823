"""slime's loss function loads the custom loss by its path and calls it; it calls slime's own policy loss in turn."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.playing import arguments, expected, first_column, given
from trainer.adapters.test_wrapped_losses import Batch

from triage_monitor.trainer.adapters import slime
from triage_monitor.trainer.adapters.tap import Tap


class Ranks(ModuleType):
    """megatron.core.mpu of one process: every world has one rank."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_world_size"):
            return lambda *_, **__: 1
        if name.endswith("_rank"):
            return lambda *_, **__: 0
        if name.endswith("_group"):
            return lambda *_, **__: None
        raise AttributeError(name)


sys.modules["megatron.core.mpu"] = Ranks("megatron.core.mpu")
hollow("megatron")
import megatron.core  # noqa: E402

megatron.core.mpu = sys.modules["megatron.core.mpu"]
from slime.backends.megatron_utils import loss as home  # noqa: E402


def told() -> dict[str, Any]:
    batch = Batch()
    home.calculate_log_probs_and_entropy = first_column

    def loss_of(tap: Tap | None) -> Tensor:
        slime._tap = tap
        micro, logits = given(batch)
        path = None if tap is None else "triage_monitor.trainer.adapters.slime.loss"
        loss, _, _ = home.loss_function(arguments(path), micro, 1, 4, logits)
        return loss

    return answers(loss_of, batch, expected(batch)) | {"numbers": {}}
