"""Between a framework's tensors and responses laid end to end: the one place that knows about padding, packing, shifts.

    placement = padded(mask)  |  packed(mask, cu_seqlens)  |  by_position(mask, position_ids)
              | by_id(response_ids, sequence_ids)  |  per_sample(masks)
    monitor.submit(step=k, **placement.submission(learner=.., sampler=.., advantages=..))
    weights = placement.put(flat_weights, fill=1.0)          # back into the framework's shape, for its loss

The rule. A response runs from its first to its last position with mask 1: prompts and padding fall away, masked holes
stay as positions (segments are counted over positions), a response without any mask-1 token stays as an empty one.
What is not aligned with the mask is moved first (`shifted`), what context parallelism cut is joined first
(`zigzag.py`), and of replicated ranks one emits (`replicas.py`). Nothing outside the kept positions is ever read as
a number.
numpy throughout; torch tensors are accepted wherever arrays are, and `take` / `put` keep them on their device with
their gradient. Geometry is host work: a mask on a GPU is copied once, which waits for it.
"""

from triage_monitor.trainer.layouts.parts import Part, joined
from triage_monitor.trainer.layouts.placement import Placement
from triage_monitor.trainer.layouts.replicas import Rank
from triage_monitor.trainer.layouts.rows import by_id, by_position, packed, padded, per_sample
from triage_monitor.trainer.layouts.shift import shifted
from triage_monitor.trainer.layouts.zigzag import (
    held_positions,
    held_response_positions,
    join_packed_slices,
    join_response_slices,
    join_slices,
)

__all__ = [
    "Part",
    "Placement",
    "Rank",
    "by_id",
    "by_position",
    "held_positions",
    "held_response_positions",
    "join_packed_slices",
    "join_response_slices",
    "join_slices",
    "joined",
    "packed",
    "padded",
    "per_sample",
    "shifted",
]
