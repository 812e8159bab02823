"""A `Tap` from the environment, for adapters that a framework loads by name in each of its worker processes.

    TRIAGE_URL      the sidecar's address; required
    TRIAGE_RUN      the run's name; the framework's name when not set
    TRIAGE_ACT      `0`: watch only
    TRIAGE_TOKEN and the certificate variables as for `Monitor`
    TRIAGE_TEMPERATURE, TRIAGE_TOP_P, TRIAGE_TOP_K, TRIAGE_LOGPROBS_MODE, TRIAGE_PRECISION
                    sampling settings that the framework's hook does not show

Wrong configuration raises ConfigError when the first hook runs, before anything was trained on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.trainer.adapters.tap import Tap
from triage_monitor.trainer.client import Monitor
from triage_monitor.trainer.distributed import shared_launch_id
from triage_monitor.trainer.layouts import Rank

_NUMBERS = ("temperature", "top_p", "top_k")
_WORDS = ("logprobs_mode", "precision")


def tap_from_environment(
    framework: str,
    *,
    rank: Rank | None = None,
    settings: Mapping[str, Any] | None = None,
    follow: bool = True,
    **options: Any,
) -> Tap:
    """`options` go to Tap. Without a rank, every process of torch.distributed is a data-parallel one."""
    url = os.environ.get("TRIAGE_URL")
    if not url:
        raise ConfigError(f"the {framework} adapter needs the sidecar's address in TRIAGE_URL in every worker process")
    place = rank if rank is not None else _data_parallel_rank()
    needs_monitor = place.emits or _is_global_first()
    monitor = None
    launch = shared_launch_id()  # a collective: also of ranks that send nothing, or the first would be a second launch
    if needs_monitor:
        monitor = Monitor(
            url,
            run=os.environ.get("TRIAGE_RUN") or framework,
            shards=place.shards,
            shard=place.shard,
            launch_id=launch,
            settings=_settings(os.environ) | dict(settings or {}),
        )
    tap = Tap(monitor, act=os.environ.get("TRIAGE_ACT") != "0", emits=place.emits, **options)
    if follow:
        tap.follow_optimizer()
    return tap


def _settings(env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*_NUMBERS, *_WORDS):
        text = env.get(f"TRIAGE_{name.upper()}")
        if text is None:
            continue
        try:
            found[name] = float(text) if name in _NUMBERS else text
        except ValueError:
            raise ConfigError(f"TRIAGE_{name.upper()} must be a number, not {text!r}") from None
    return found


def _data_parallel_rank() -> Rank:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Rank()
    return Rank(data=dist.get_rank(), data_size=dist.get_world_size())


def _is_global_first() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def megatron_rank() -> Rank:
    """This process's place by Megatron's own groups."""
    from megatron.core import mpu

    return Rank(
        data=mpu.get_data_parallel_rank(),
        data_size=mpu.get_data_parallel_world_size(),
        tensor=mpu.get_tensor_model_parallel_rank(),
        tensor_size=mpu.get_tensor_model_parallel_world_size(),
        pipeline=mpu.get_pipeline_model_parallel_rank(),
        pipeline_size=mpu.get_pipeline_model_parallel_world_size(),
        context=mpu.get_context_parallel_rank(),
        context_size=mpu.get_context_parallel_world_size(),
    )
