"""The Dockerfile: what it copies is there, what it runs exists, its health check tells a living sidecar from none."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from programs import program
from service.live_server import serving

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Keyword and the rest, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    lines = (line.strip() for line in text.splitlines())
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line and not line.startswith("#")]


def env() -> dict[str, str]:
    words = next(rest for keyword, rest in instructions() if keyword == "ENV" and "NUMBA" in rest)
    return dict(word.split("=", 1) for word in words.split())


def last(keyword: str) -> str:
    return [rest for name, rest in instructions() if name == keyword][-1]


def test_what_the_image_copies_is_in_the_repository_and_not_ignored() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [rest for keyword, rest in instructions() if keyword == "COPY" and not rest.startswith("--from")]
    sources = [name for rest in copied for name in rest.split()[:-1]]
    assert "triage_monitor" in sources and "pyproject.toml" in sources
    for name in sources:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, pattern) for pattern in kept), name


def test_image_has_no_torch_and_runs_as_nobody_in_particular() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = next(rest for keyword, rest in instructions() if keyword == "RUN" and "pip install" in rest)
    assert installed.split()[-1] == "."  # no extra
    assert not [name for name in project["dependencies"] if name.startswith("torch")]
    assert last("USER") == "10001:10001"
    assert json.loads(last("ENTRYPOINT"))[0] in project["scripts"]
    assert re.fullmatch(r"PYTHON=\d+\.\d+\.\d+-slim-bookworm", last("ARG"))


def test_everything_the_image_writes_lies_in_its_volume() -> None:
    home = json.loads(last("VOLUME"))[0] if last("VOLUME").startswith("[") else last("VOLUME")
    assert env()["TRIAGE_STORE__DATA_DIR"] == home
    assert env()["NUMBA_CACHE_DIR"].startswith(f"{home}/")
    assert env()["PYTHONDONTWRITEBYTECODE"] == "1"


def test_health_check_tells_a_living_sidecar_from_none() -> None:
    command = json.loads(last("HEALTHCHECK").split("CMD ", 1)[1])
    assert command[0] == "python"
    with serving() as live:
        port = live.address.rsplit(":", 1)[1]
        check = [sys.executable, *command[1:]]
        there = subprocess.run(check, env={"TRIAGE_SERVER__PORT": port}, capture_output=True, timeout=60)
    gone = subprocess.run(check, env={"TRIAGE_SERVER__PORT": port}, capture_output=True, timeout=60)
    assert (there.returncode, gone.returncode) == (0, 1)


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [program("hadolint", Path(sys.executable).parent), str(DOCKERFILE)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["compose/make-secrets.sh", "slurm/train.sbatch"])
def test_shell_scripts_parse(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(ROOT / "deploy" / name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
