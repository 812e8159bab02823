"""miles's loss function loads the custom loss by its path and calls it; the same code as slime's, played alike."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.playing import arguments, expected, first_column, given
from trainer.adapters.test_wrapped_losses import Batch

from triage_monitor.trainer.adapters import slime
from triage_monitor.trainer.adapters.tap import Tap

from miles.backends.training_utils import loss as home  # isort: skip
from miles.backends.training_utils import parallel  # isort: skip
from miles.backends.training_utils.loss_hub import logit_processors  # isort: skip
from miles.utils.ft_utils.process_group_utils import GroupInfo  # isort: skip


def told() -> dict[str, Any]:
    batch, alone = Batch(), GroupInfo(rank=0, size=1, group=None)
    parallel.set_parallel_state(
        parallel.ParallelState(
            **dict.fromkeys(("intra_dp", "intra_dp_cp", "cp", "tp", "pp", "ep", "etp", "indep_dp"), alone)
        )
    )
    logit_processors.calculate_log_probs_and_entropy = first_column

    def loss_of(tap: Tap | None) -> Tensor:
        slime._tap = tap
        micro, logits = given(batch)
        path = None if tap is None else "triage_monitor.trainer.adapters.slime.miles_loss"
        loss, _, _ = home.loss_function(arguments(path), micro, 1, logits)
        return loss

    return answers(loss_of, batch, expected(batch)) | {"numbers": {}}
