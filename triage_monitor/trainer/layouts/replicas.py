"""Which of the ranks that hold the same tokens sends them, and as which shard.

Data-parallel ranks hold different responses: each is a shard. Tensor-parallel ranks hold the same log-probs, only the
last pipeline stage has any, and context-parallel ranks hold slices that are joined on the first of them: one emits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from triage_monitor.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rank:
    """A process's place in the parallel layout. Raises ConfigError when a place lies outside its size."""

    data: int = 0
    data_size: int = 1
    tensor: int = 0
    tensor_size: int = 1
    pipeline: int = 0
    pipeline_size: int = 1
    context: int = 0
    context_size: int = 1

    def __post_init__(self) -> None:
        for item in fields(self)[::2]:
            place, size = getattr(self, item.name), getattr(self, f"{item.name}_size")
            if not 0 <= place < size:
                raise ConfigError(f"{item.name} rank {place} does not lie in 0 .. {size - 1}")

    @property
    def emits(self) -> bool:
        return self.tensor == 0 and self.context == 0 and self.pipeline == self.pipeline_size - 1

    @property
    def shard(self) -> int:
        return self.data

    @property
    def shards(self) -> int:
        return self.data_size
