"""Two real gloo processes: every rank switches to the same set at the same update, however far apart they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.client_help import eventually, start_script
from trainer.fault_server import FaultServer

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.distributed import apply_on_all_ranks, shared_launch_id

RANK = """
import json, random, sys, time
import torch.distributed as dist
from triage_monitor import Monitor
from triage_monitor.trainer.distributed import apply_on_all_ranks, shared_launch_id
store, rank, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
skew = random.Random(rank)
for src, url in enumerate(sys.argv[4:]):
    launch = shared_launch_id(src=src)
    monitor = Monitor(url, run="r", shards=2, shard=rank, launch_id=launch) if rank == src else None
    seen = []
    for step in range(100_000):
        time.sleep(skew.uniform(0, 0.002) if rank else 0)   # rank 1 lags behind by a changing amount
        params = apply_on_all_ranks(monitor, step, src=src)
        seen.append([step, params.to_dict()])
        if params.version == last:
            break
    print(json.dumps({"launch": launch, "seen": seen}))
    if monitor is not None:
        monitor.close(20.0)
dist.destroy_process_group()
"""


def a_set(version: int, **more: Any) -> dict[str, Any]:
    changes = {"gate.enabled": True, "gate.w_min": 0.1 + 0.7 / version, **more}
    return {**TriageParams().with_changes(changes).to_dict(), "version": version}


def switches(seen: list[Any]) -> list[tuple[int, int]]:
    """(version, first step) of each run of equal versions."""
    steps = [(params["version"], step) for step, params in seen]
    return [item for before, item in zip([(None, 0), *steps], steps, strict=False) if item[0] != before[0]]


def test_ranks_switch_every_version_at_the_same_step_whichever_rank_decides(tmp_path: Path) -> None:
    reason = "\u00e9\u0001\ud800" + "long " * 500
    with FaultServer() as zero, FaultServer() as one:
        servers = (zero, one)
        ranks = [start_script(RANK, str(tmp_path / "store"), str(r), "4", zero.url, one.url) for r in (0, 1)]
        for server in servers:
            for version in (1, 2, 3, 4):
                server.publish({**a_set(version), "reason": reason})
                assert server.wait(lambda v=version, s=server: any(a["version"] == v for a in s.acknowledged), 90.0)
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        phases = [[json.loads(line) for line in out.splitlines()] for out, _ in outputs]
        for server, first, second in zip(servers, *phases, strict=True):
            assert first == second
            assert [version for version, _ in switches(first["seen"])] in ([0, 1, 2, 3, 4], [1, 2, 3, 4])
            for version, step in switches(first["seen"]):
                assert version == 0 or {"version": version, "step": step} in server.acknowledged
            final = first["seen"][-1][1]
            assert final["gate"] == a_set(4)["gate"], "floats travel exactly"
            assert len(final["reason"]) == 200
        assert phases[0][0]["launch"] != phases[0][1]["launch"]


def test_single_process_needs_no_process_group() -> None:
    from triage_monitor import Monitor

    assert apply_on_all_ranks(None, 0) == TriageParams()
    assert shared_launch_id() != shared_launch_id()
    with FaultServer() as server, Monitor(server.url, run="r") as monitor:
        server.publish(a_set(1))
        assert eventually(lambda: monitor.params.version == 1)
        assert apply_on_all_ranks(monitor, 5).gate.w_min == a_set(1)["gate"]["w_min"]
