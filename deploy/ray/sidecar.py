"""The sidecar within a Ray job: an actor that runs `triage-monitor serve` on the node where it lies.

    from sidecar import start
    actor, settings = start("/shared/triage/my-run")          # in the driver
    os.environ.update(settings)                               # and runtime_env={"env_vars": settings} for the workers
    monitor = Monitor(os.environ["TRIAGE_URL"], run="my-run")  # in the trainer; sends TRIAGE_TOKEN by itself

The actor lives as long as the driver keeps it; when it goes, trainers go on with their last parameters. `folder` must
be on a disk that outlives the job if the runs are to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "triage_monitor")


class Sidecar:
    """One served process with a token of its own; `settings` is what the others need in their environment."""

    def __init__(self, folder: str, address: str) -> None:
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        tokens = home / "tokens.json"
        tokens.unlink(missing_ok=True)  # those of an earlier job are no longer good
        scopes = ("--scope", "ingest", "--scope", "read", "--scope", "control")
        token = subprocess.run(
            [*COMMAND, "token", "add", "ray-job", *scopes, "--file", str(tokens)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        env = {**os.environ, "TRIAGE_AUTH__TOKENS_FILE": str(tokens), "OMP_NUM_THREADS": "1"}
        command = [*COMMAND, "serve", "--host", address, "--port", "0", "--data-dir", str(home / "data")]
        self._process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "http" not in line:
            raise RuntimeError(f"the sidecar did not start: exit code {self._process.wait()}; its log says why")
        self._settings = {"TRIAGE_URL": line.split()[-1], "TRIAGE_TOKEN": token}

    def settings(self) -> dict[str, str]:
        return dict(self._settings)

    def end(self) -> int:
        """Its exit code."""
        self._process.terminate()
        self._process.communicate(timeout=60)
        return self._process.returncode


def start(folder: str) -> tuple[Any, dict[str, str]]:
    """The actor's handle, to be kept, and the environment for driver and workers."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    address = ray.util.get_node_ip_address()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(Sidecar).options(num_cpus=1, scheduling_strategy=here).remote(folder, address)
    return actor, ray.get(actor.settings.remote())
