"""The benchmark's data: every corpus run as series of numbers, an update a row, and the one file that ships them.

    update   each indicator over one update's tokens
    window   the same over the trailing window (the merge of the newest 25 summaries), the signed quantiles
             (`q0.001_all`), and what the window holds (`tokens`, `responses`, `updates`)

Made from recordings by the product's own path: summarise, merge, indicators. Absent is NaN in memory and null in the
file. The file keeps float32 rounded to 13 bits of mantissa (6e-5 of the value): alarms compare levels, not last digits,
and every contender reads the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.judge.indicators import INDICATOR_NAMES, QUANTILES, update_report
from triage_monitor.storage.recordings import iter_updates
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.window import DEFAULT_WINDOW_UPDATES, TrailingWindow
from triage_monitor.testbed.outcome import HALF_OF_BEST, CollapseRule, collapse_step

Floats = NDArray[np.float64]
Report = Mapping[str, Any]

SHIPPED = "early_warning.parquet"
METADATA_KEY = b"triage_runs"
DROPPED_BITS = 10  # of the 23 of a float32's mantissa
# column of the file -> field of a line of `updates.jsonl`; None in a line is an unknown value
_LINES = {
    "reward": "reward_mean",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "loss": "objective_policy_loss",
}


@dataclass(frozen=True, slots=True, eq=False)
class RunSeries:
    """One run. Arrays are of one length, an entry an update; NaN where a value is absent.

    `split` is `development` or `held-out`; `settings` are arm, regime, task and what else tells runs apart.
    """

    name: str
    group: str
    split: str
    settings: Mapping[str, Any]
    steps: NDArray[np.int64]
    rewards: Floats
    finite: NDArray[np.bool_]
    entropy: Floats
    grad_norm: Floats
    loss: Floats
    update: Mapping[str, Floats]
    window: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.steps)

    def collapse(self, rule: CollapseRule = HALF_OF_BEST) -> int | None:
        """Index of the update at which the reward collapses; None for a survivor."""
        return collapse_step(self.rewards.tolist(), rule, self.finite.tolist())


def series_of_recording(
    directory: Path, name: str, group: str, split: str, spec: SummarySpec = DEFAULT_SPEC
) -> RunSeries:
    """Reads a testbed recording (`testbed/record.py`) and computes every indicator anew."""
    window = TrailingWindow(DEFAULT_WINDOW_UPDATES, spec)
    of_update: list[dict[str, float]] = []
    of_window: list[dict[str, float]] = []
    for shard in iter_updates([directory / "updates"]):
        summary = shard.rows.summarize(spec)
        window.put(shard.step, shard.attempt, summary)
        merged = window.merged()
        assert merged is not None
        of_update.append(_numbers(update_report(summary), 1))
        of_window.append(_numbers(update_report(merged.summary), merged.updates))
    lines = [json.loads(line) for line in (directory / "updates.jsonl").read_text(encoding="utf-8").splitlines()]
    described = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if len(lines) != len(of_update):
        raise InputError("incomplete", f"{len(lines)} lines but {len(of_update)} recorded updates", path=str(directory))
    reward, entropy, grad_norm, loss = (_column(lines, source) for source in _LINES.values())
    return RunSeries(
        name=name,
        group=group,
        split=split,
        settings=described["regime"] | {"arm": described["config"]["arm"]},
        steps=np.array([line["step"] for line in lines], np.int64),
        rewards=reward,
        finite=np.array([line["skipped_optimizer_steps"] == 0 for line in lines]),
        entropy=entropy,
        grad_norm=grad_norm,
        loss=loss,
        update={key: _column(of_update, key) for key in of_update[0]},
        window={key: _column(of_window, key) for key in of_window[0]},
    )


def write_corpus(path: Path, runs: Sequence[RunSeries]) -> None:
    """All runs in one Parquet file, which appears whole."""
    columns: dict[str, pa.Array] = {
        "run": pa.array([run.name for run in runs for _ in run.steps]).dictionary_encode(),
        "step": pa.array(np.concatenate([run.steps for run in runs]), pa.int32()),
        "finite": pa.array(np.concatenate([run.finite for run in runs])),
        "reward": _stored(run.rewards for run in runs),
        "entropy": _stored(run.entropy for run in runs),
        "grad_norm": _stored(run.grad_norm for run in runs),
        "loss": _stored(run.loss for run in runs),
    }
    for scope in ("update", "window"):
        for name in getattr(runs[0], scope):
            columns[f"{scope}.{name}"] = _stored(getattr(run, scope)[name] for run in runs)
    described = {run.name: {"group": run.group, "split": run.split, "settings": dict(run.settings)} for run in runs}
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(described).encode()})
    beside = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, beside, compression="zstd", compression_level=12, use_byte_stream_split=_floating(table))
    beside.replace(path)


def shipped_corpus() -> Path:
    """Where the package keeps its corpus."""
    return Path(str(files("triage_monitor.evaluation").joinpath(SHIPPED)))


def read_corpus(path: Path | None = None) -> list[RunSeries]:
    """The shipped corpus, or the one in `path`. Raises InputError for a file that is none."""
    where = shipped_corpus() if path is None else path
    try:
        table = pq.read_table(where)
    except (OSError, pa.ArrowException) as error:
        raise InputError("format", f"not a readable Parquet file: {error}", path=str(where)) from error
    described = json.loads((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    if not described or "run" not in table.column_names:
        raise InputError("format", "not a corpus of run series", path=str(where))
    names = np.array(table["run"].to_pylist())
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "run"}
    return [_run(name, described[name], columns, np.flatnonzero(names == name)) for name in described]


def _run(name: str, described: Mapping[str, Any], columns: Mapping[str, Any], rows: NDArray[np.intp]) -> RunSeries:
    def scope(prefix: str) -> dict[str, Floats]:
        start = f"{prefix}."
        return {
            key.removeprefix(start): values[rows].astype(np.float64)
            for key, values in columns.items()
            if key.startswith(start)
        }

    return RunSeries(
        name=name,
        group=described["group"],
        split=described["split"],
        settings=described["settings"],
        steps=columns["step"][rows].astype(np.int64),
        rewards=columns["reward"][rows].astype(np.float64),
        finite=columns["finite"][rows].astype(bool),
        entropy=columns["entropy"][rows].astype(np.float64),
        grad_norm=columns["grad_norm"][rows].astype(np.float64),
        loss=columns["loss"][rows].astype(np.float64),
        update=scope("update"),
        window=scope("window"),
    )


def _numbers(report: Report, updates: int) -> dict[str, float]:
    values = {name: report["indicators"][name] for name in INDICATOR_NAMES}
    for side, quantiles in report["quantiles"].items():
        values |= {f"q{q}_{side}": quantiles[str(q)] for q in QUANTILES}
    counts = report["counts"]
    values |= {"tokens": counts["valid_tokens"], "responses": counts["responses"], "updates": updates}
    return {name: np.nan if value is None else float(value) for name, value in values.items()}


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([np.nan if line[name] is None else line[name] for line in lines], np.float64)


def _stored(parts: Iterable[Floats]) -> pa.Array:
    values = np.concatenate(list(parts)).astype(np.float32)
    bits = values.view(np.uint32)
    half = np.uint32(1 << (DROPPED_BITS - 1))
    rounded = ((bits + half) & ~np.uint32((1 << DROPPED_BITS) - 1)).view(np.float32)
    return pa.array(rounded, mask=np.isnan(values))


def _floating(table: pa.Table) -> list[str]:
    return [field.name for field in table.schema if pa.types.is_floating(field.type)]
