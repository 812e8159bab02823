"""Where frameworks lie that are not installed beside the product, and code run with them in a process of its own.

`TRIAGE_FRAMEWORKS` names a directory that `pip install --no-deps --target` filled (.ci/frameworks.txt). Without it, or
the framework in it, a test skips with that reason; under CI=true it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
HOME = Path(os.environ.get("TRIAGE_FRAMEWORKS", Path(__file__).parents[3] / ".frameworks"))


def need(package: str) -> Path:
    if (HOME / package).is_dir():
        return HOME
    said = f"{package} is not in {HOME}, which .ci/run fills by pip install --no-deps --target"
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)


def run_with(source: str, *paths: Path, **env: str) -> str:
    """The standard output of a Python process that sees `paths` behind the product."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *map(str, paths)]), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
