"""The systemd unit and the snippets for Slurm and Ray: run as far as one machine without these systems allows.

Slurm is stood in for by an `srun` that runs its command here; of the Ray snippet the class is run without Ray.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
from programs import program

from triage_monitor.config import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "triage-monitor.service"
TRAINER = """
import os
import numpy as np
from triage_monitor import Monitor

with Monitor(os.environ["TRIAGE_URL"], run="slurm-run", settings={}) as monitor:
    monitor.apply(0)
    monitor.submit(
        step=0, learner_logprobs=np.full((2, 4), -1.1), sampler_logprobs=np.full((2, 4), -1.0),
        advantages=np.array([1.0, -1.0]), mask=np.ones((2, 4), dtype=bool),
    )
    monitor.close(60)
    print("acknowledged", monitor.stats["acknowledged"])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_unit_is_valid_and_tight(tmp_path: Path) -> None:
    """Checked with a program that exists here in the place of /opt/triage-monitor."""
    analyze = program("systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", UNIT.read_text(), flags=re.M))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    score = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", str(unit)], capture_output=True, text=True
    )
    assert score.returncode == 0, score.stdout[-300:]


def test_unit_starts_the_command_with_the_shipped_settings() -> None:
    command = re.search(r"^ExecStart=(.*)$", UNIT.read_text(), flags=re.M)
    assert command is not None
    words = command[1].split()
    help_ = subprocess.run([sys.executable, "-m", "triage_monitor", words[1], "--help"], capture_output=True, text=True)
    assert all(word in help_.stdout for word in words if word.startswith("--"))
    shipped = Settings.load(DEPLOY / "triage-monitor.toml")
    assert Path(words[words.index("--config") + 1]).name == "triage-monitor.toml"
    assert shipped == Settings()
    state = re.search(r"^StateDirectory=(.*)$", UNIT.read_text(), flags=re.M)
    assert state is not None and words[words.index("--data-dir") + 1] == f"/var/lib/{state[1]}"


def test_slurm_script_serves_trains_and_cleans_up(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    executable(programs / "srun", '#!/bin/sh\nshift\nexec "$@"\n')
    executable(programs / "triage-monitor", f'#!/bin/sh\nexec {sys.executable} -m triage_monitor "$@"\n')
    executable(programs / "hostname", "#!/bin/sh\necho localhost\n")
    (tmp_path / "train.py").write_text(TRAINER)
    port = free_port()
    env = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "TRIAGE_PORT": str(port),
        "TRAIN": f"{sys.executable} {tmp_path / 'train.py'}",
    }
    done = subprocess.run(
        ["bash", str(DEPLOY / "slurm" / "train.sbatch")], env=env, capture_output=True, text=True, timeout=200
    )
    log = tmp_path / "triage-4711" / "sidecar.log"
    assert done.returncode == 0, done.stderr + log.read_text()
    assert done.stdout.split()[-2:] == ["acknowledged", "1"]
    assert (tmp_path / "triage-4711").stat().st_mode & 0o777 == 0o700
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0  # nobody listens any more


def test_slurm_script_ends_with_the_log_when_the_sidecar_cannot_start(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    executable(programs / "triage-monitor", f'#!/bin/sh\nexec {sys.executable} -m triage_monitor "$@"\n')
    executable(programs / "hostname", "#!/bin/sh\necho localhost\n")
    env = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4712",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "TRIAGE_PORT": "70000",
    }
    done = subprocess.run(
        ["bash", str(DEPLOY / "slurm" / "train.sbatch")], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "port must be in" in done.stderr


def test_ray_sidecar_answers_to_its_own_token_alone_and_ends(tmp_path: Path) -> None:
    sidecar = runpy.run_path(str(DEPLOY / "ray" / "sidecar.py"))["Sidecar"](str(tmp_path / "run"), "127.0.0.1")
    settings = sidecar.settings()
    with httpx.Client(base_url=settings["TRIAGE_URL"], trust_env=False, timeout=60) as client:
        assert client.get("/v1/runs").status_code == 401
        answer = client.get("/v1/runs", headers={"Authorization": f"Bearer {settings['TRIAGE_TOKEN']}"})
    assert answer.json() == {"runs": []}
    assert sidecar.end() == 0
