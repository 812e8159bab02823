"""A run on disk, as `analyze` and `replay` read it.

    config.json       the configuration and what it resolved to
    updates/*.parquet one row per response, the contract's form: step, advantage, both log-probs, group, reward, ...,
                      and the update's entropy, wall_seconds and params_version beside them
    updates.jsonl     one line per update: reward, entropy, gradient norm, wall time, parameter version, the objective

Parquet parts hold several updates and appear whole; lines are flushed one by one. A recorder opened on an existing
directory goes on after its newest update, so a restored run may continue its own record.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from triage_monitor.storage.recordings import RecordingWriter
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.update import UpdateResult

UPDATES_PER_PART = 10
IN_ROWS = ("entropy", "wall_seconds", "params_version")


class RunRecorder:
    """Pass it to `train(on_update=recorder)`; use as a context manager, or call `close`."""

    def __init__(self, directory: str | Path, config: TrainConfig, *, run: str, attempt: int = 1) -> None:
        self.directory = Path(directory)
        self.attempt = attempt
        self._rows = RecordingWriter(self.directory / "updates", run=run, updates_per_part=UPDATES_PER_PART)
        self._lines = (self.directory / "updates.jsonl").open("a", encoding="utf-8")
        described = {"run": run, "config": config.to_dict(), "regime": asdict(config.resolved_regime())}
        (self.directory / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")

    def __call__(self, result: UpdateResult) -> None:
        scalars = result.scalars()
        self._rows.append(result.step, self.attempt, result.rows, extra={name: scalars[name] for name in IN_ROWS})
        self._lines.write(json.dumps({"attempt": self.attempt, **scalars}) + "\n")
        self._lines.flush()

    def close(self) -> None:
        self._rows.close()
        self._lines.close()

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
