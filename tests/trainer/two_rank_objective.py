"""One rank of test_loss_layout's data-parallel test: `python two_rank_objective.py RANK DIRECTORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from trainer.objective_batches import ACTIVE, lay_out, make_responses

from triage_monitor.trainer.loss import TriageLoss


def main(rank: int, directory: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    responses = make_responses(13, count=9, longest=130)
    shard = responses[:3] if rank == 0 else responses[3:]
    results = {}
    for name in ("sequence_mean", "token_mean"):
        batch = lay_out(shard)
        value, _ = TriageLoss(ACTIVE, name)(*batch.arguments(), step=0, process_group=dist.group.WORLD)
        value.backward()
        results[name] = (value.item(), batch.rows(batch.learner.grad))
    (directory / f"rank{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
