"""Ready-made rows for the store's tests."""

from __future__ import annotations

from triage_monitor.storage.records import ParamsRow, RunRow, ShardRow, SummaryRow, UpdateRow


def run_row(run: str = "run-a") -> RunRow:
    return RunRow(run, created_at=1.0)


def shard_row(
    step: int, shard: int = 0, *, run: str = "run-a", attempt: int = 0, shards: int = 1, digest: str = "d"
) -> ShardRow:
    return ShardRow(run, attempt, step, shard, shards, digest, 2.5, 100, b"summary %d %d" % (step, shard))


def update_row(
    step: int, *, run: str = "run-a", attempt: int = 0, revision: int = 0, shards: int = 1, missing: int = 0
):
    status = "partial" if missing else "complete"
    report = {"update": {"indicators": {"rho_asym": step / 4, "delta_mean": None}}}
    return UpdateRow(run, attempt, step, revision, status, shards, missing, 3.5, "healthy", report)


def summary_row(step: int, *, run: str = "run-a", attempt: int = 0) -> SummaryRow:
    return SummaryRow(run, attempt, step, b"merged %d/%d" % (attempt, step))


def params_row(version: int, *, run: str = "run-a") -> ParamsRow:
    return ParamsRow(run, version, 1.0, "policy", "because", {"version": version})
