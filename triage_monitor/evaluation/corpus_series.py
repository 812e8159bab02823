"""From the corpus's recordings to the one file that ships: each run's series, kept beside its recording, then joined.

A recording is read once; its series stay valid while the recording, the indicator names and the summary's spec are the
same. What is not made yet is left out and named, so that an unfinished corpus can be looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from triage_monitor.evaluation.series import RunSeries, read_corpus, series_of_recording, write_corpus
from triage_monitor.judge.indicators import INDICATOR_NAMES
from triage_monitor.summary.spec import DEFAULT_SPEC
from triage_monitor.testbed.corpus import CorpusRun, is_made


def series_of(run: CorpusRun, directory: Path) -> RunSeries:
    """From the kept file when it is there, else from the recording."""
    kept = directory / run.name / f"series-{_key()}.parquet"
    if not kept.exists():
        write_corpus(kept, [series_of_recording(directory / run.name, run.name, run.group, run.split)])
    return read_corpus(kept)[0]


def all_series(runs: Sequence[CorpusRun], directory: Path) -> Iterator[RunSeries]:
    """Those of the runs that are made, in the runs' order."""
    for run in runs:
        if is_made(run, directory):
            yield series_of(run, directory)


def _key() -> str:
    """What a run's series depend on besides its recording."""
    return hashlib.sha256(repr((INDICATOR_NAMES, asdict(DEFAULT_SPEC))).encode()).hexdigest()[:12]
