"""The calls of `tail`: an attempt for every launch (and every resume of it), then each step's shards.

The launch id is made from the directory and the number of resumes, so a `tail` that was started anew gets the same
attempts. A step whose key the server holds with other content (409) was written again by a resumed trainer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from triage_monitor.cli.replay import Refused, insist
from triage_monitor.cli.tail_state import Launch, TailState
from triage_monitor.errors import InputError
from triage_monitor.storage.dumps_follow import DumpedStep, Unreadable
from triage_monitor.storage.recordings import read_units
from triage_monitor.storage.recordings_group import RecordedUpdate, grouped
from triage_monitor.summary.rows import STREAM_MIME, encode_stream
from triage_monitor.trainer.transport import Link

SHARD_TOKENS = 4 << 20  # two float64 log-probs and an advantage: 100 MB, below what a server takes in one body


class Submitter:
    """`refused` counts the steps that could not be read or that the server will not take."""

    def __init__(self, link: Link, state: TailState, run: str | None, patience: float) -> None:
        self._link = link
        self._state = state
        self._run = run
        self._patience = patience
        self._attempts: dict[tuple[str, int], int] = {}
        self.steps = self.shards = self.repeated = self.refused = 0

    def take(self, steps: Iterable[DumpedStep]) -> None:
        for step in steps:
            launch = self._state.launch(step.launch)
            is_known = launch.steps.get(str(step.step)) == step.stamp
            if not is_known and step.written >= launch.resumed_at:  # older files are of the attempt before
                self._send(step, launch)

    def pass_over(self, files: Iterable[Unreadable]) -> None:
        """Tells of each once, after a restart too."""
        for file in files:
            launch = self._state.launch(file.path.parent)
            if launch.steps.get(file.path.name) != file.stamp:
                self._refuse(file.sentence)
                launch.steps[file.path.name] = file.stamp
                self._state.save()

    def said(self) -> str:
        tail = f", {self.refused} refused" if self.refused else ""
        return f"{self.steps} updates, {self.shards} shards ({self.repeated} known before){tail}"

    def _send(self, step: DumpedStep, launch: Launch) -> None:
        try:
            updates = list(grouped(read_units(step.units), SHARD_TOKENS))
            if not step.is_unchanged():
                return  # it was written while it was read; it comes again
            self._put_all(step, launch, updates)
            self.steps += 1
        except InputError as error:
            if not step.is_unchanged():
                return
            self._refuse(str(error))
        except Refused as error:
            self._refuse(f"{step.units[0].paths[0]}, step {step.step}: {error}")
        launch.steps[str(step.step)] = step.stamp
        self._state.save()

    def _refuse(self, sentence: str) -> None:
        self.refused += 1
        print(f"triage-monitor: passed over: {sentence}", file=sys.stderr)

    def _put_all(self, step: DumpedStep, launch: Launch, updates: Sequence[RecordedUpdate]) -> None:
        try:
            self._put_each(step, launch, updates)
        except Refused as error:
            if error.status != 409:
                raise
            launch.resumes += 1
            launch.resumed_at = step.written
            said = f"step {step.step} was written again: the trainer was resumed from there"
            print(f"triage-monitor: {said}", file=sys.stderr)
            self._put_each(step, launch, updates)

    def _put_each(self, step: DumpedStep, launch: Launch, updates: Sequence[RecordedUpdate]) -> None:
        base = f"/v1/runs/{self._run or run_name(step.run)}"
        query = {"shards": len(updates), "attempt": self._attempt(base, step, launch)}
        for shard, update in enumerate(updates):
            answer = self._insist(
                "PUT",
                f"{base}/updates/{step.step}/shards/{shard}",
                query=query,
                content=encode_stream(update.rows),
                headers={"Content-Type": STREAM_MIME},
            )
            self.shards += 1
            self.repeated += answer.status == 200

    def _attempt(self, base: str, step: DumpedStep, launch: Launch) -> int:
        key = (str(step.launch), launch.resumes)
        if key not in self._attempts:
            body = {"from_step": step.step, "launch_id": f"tail-{_identity(step.launch)}-{launch.resumes}"}
            self._attempts[key] = int(self._link_post(f"{base}/attempts", body).body["attempt"])
        return self._attempts[key]

    def _link_post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        return self._insist("POST", path, content=json.dumps(body).encode(), headers=headers)

    def _insist(self, method: str, path: str, **call: Any) -> Any:
        return insist(self._link, self._patience, method, path, **call)


def run_name(name: str) -> str:
    """A directory's name as a run's: other characters become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".")[:128] or "run"


def _identity(launch: Path) -> str:
    return blake2b(str(launch.resolve()).encode(), digest_size=8).hexdigest()
