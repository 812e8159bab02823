"""The JSON against Grafana's published schema (`@grafana/schema`, by the TypeScript compiler). Slow: it asks npm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from triage_monitor.dashboards.build import dashboards, text_of

# JSON holds the values of TypeScript's string enums, not the enums.
HEAD = """import type { Dashboard } from "@grafana/schema";
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("schema")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    if done.returncode:
        pytest.skip(f"npm could not install {' and '.join(PACKAGES)}: {done.stderr[-300:]}")
    return folder


def compiled(project: Path, name: str, board: str) -> subprocess.CompletedProcess[str]:
    made = f"export const board = {board.strip()} satisfies Plain<Partial<Dashboard>>;\n"
    (project / f"{name}.ts").write_text(HEAD + made)
    command = ["node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck", f"{name}.ts"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_dashboards_satisfy_the_published_schema(project: Path) -> None:
    for name, board in dashboards().items():
        for annotation in board["annotations"].get("list", ()):
            del annotation["expr"]  # the data source's own field: the schema leaves it out
        done = compiled(project, name, text_of(board))
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_schema_refuses_a_broken_dashboard(project: Path) -> None:
    board = dashboards()["fleet"]
    board["graphTooltip"] = "crosshair"
    assert "DashboardCursorSync" in compiled(project, "broken", text_of(board)).stdout
