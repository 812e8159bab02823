"""A W&B run of the mirror's own, in a process of its own.

Within the trainer's process a second run would be handed to the trainer by its own later `wandb.init`. Here nothing is
shared: no global run, no exit hook, no console. The parent writes JSON lines, the child answers each with `""` or what
went wrong; it finishes the run when its input ends, also when the trainer was killed. The child's half below `main`
is run as a file and imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from typing import Any

MISSING = "mirror='wandb' needs a package that is not installed (wandb): pip install 'triage-monitor[wandb]'"


class RefusedRow(Exception):
    """What the child said about a line."""


class OwnWandb:
    """The parent's half, a `Tracker`. Project, entity and group are those of the trainer's active run, if any."""

    name = "wandb"

    def __init__(self, run: str, project: str | None, settings: Mapping[str, str]) -> None:
        beside = getattr(sys.modules.get("wandb"), "run", None)
        self._begin = {
            "project": project or getattr(beside, "project", None) or "triage-monitor",
            "entity": getattr(beside, "entity", None) or None,
            "group": getattr(beside, "group", None) or None,
            "name": f"{run}-triage",
            "config": dict(settings),
            "mode": None if beside is not None or _knows_wandb() else "offline",
        }
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the trainer's
        )
        self._say(self._begin)

    def is_ready(self) -> bool:
        return True

    def write(self, step: int, at: float, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        if self._process is None:
            self.open()
        self._say({"triage/step": step, **values, **texts})

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()

    def _say(self, row: Mapping[str, Any]) -> None:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            self._process = None
            process.kill()
            process.wait()
            raise RefusedRow("its process ended")
        said = json.loads(answer)
        if said:
            raise RefusedRow(said)


def needs_wandb() -> str | None:
    """Why there can be no W&B run here; None when there can. Nothing is imported."""
    try:
        return MISSING if find_spec("wandb") is None else None
    except ValueError:  # something else stands under that name
        return MISSING


def _knows_wandb() -> bool:
    """Whether W&B has a key or was told a mode; without either it would ask at the terminal."""
    if any(os.environ.get(name) for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    try:
        return any("wandb" in host for host in netrc().hosts)
    except (OSError, NetrcParseError, RuntimeError):
        return False


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints, prints elsewhere
    import wandb

    run = None
    for line in sys.stdin:
        said = ""
        try:
            row = json.loads(line)
            if run is None:
                settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, login_timeout=5)
                run = wandb.init(**row, job_type="triage", settings=settings)
                run.define_metric("triage/step", hidden=True)
                run.define_metric("triage/*", step_metric="triage/step")
            else:
                run.log(row)
        except Exception as error:  # noqa: BLE001  told to the parent
            said = f"{type(error).__name__}: {str(error)[:500]}"
        answers.write(json.dumps(said) + "\n")
        answers.flush()
    if run is not None:
        run.finish()


if __name__ == "__main__":
    main()
