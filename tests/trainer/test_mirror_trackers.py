"""The mirror into the real trackers, all local: event files, an MLflow file store, W&B offline, trackio's database.

A package that is not installed skips its test. Updates are those of the client's tests: synthetic.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service.live_server import LiveServer, serving
from trainer.client_help import an_update, eventually

from triage_monitor import Monitor

LOOP = Path(__file__).with_name("training_loop.py")
STEPS = 12
LOCAL = {
    "MLFLOW_TRACKING_URI": "mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "TRACKIO_DIR": "trackio-data",
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in LOCAL.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.fixture(scope="module")
def trained(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Where a run was trained beside every tracker that is installed; and what it and the same run alone printed."""
    home = tmp_path_factory.mktemp("trackers")
    done = subprocess.run(
        [sys.executable, str(LOOP), str(STEPS), "none", f"mirrored={server.address}"],
        cwd=home,
        env={**os.environ, **LOCAL, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_of_tests()},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return home, {"alone" if line["url"] == "none" else "beside": line for line in lines}


def path_of_tests() -> str:
    return os.pathsep.join([str(LOOP.parents[2]), os.environ.get("PYTHONPATH", "")])


def wanted(server: LiveServer, name: str) -> dict[int, float]:
    rows = server.http.get("/v1/runs/bits/updates", params={"scope": "window", "limit": 1000}).json()["windows"]
    return {row["step"]: row["indicators"][name] for row in rows}


Trained = tuple[Path, dict[str, dict[str, Any]]]


def test_losses_beside_every_installed_tracker_equal_those_without_bit_for_bit(trained: Trained) -> None:
    _, lines = trained
    assert len(lines["alone"]["losses"]) == STEPS
    assert lines["beside"]["losses"] == lines["alone"]["losses"]
    for name, found in lines["beside"]["stats"]["mirrors"].items():
        assert (found["last_error"], found["waiting"], found["written"]) == (None, 0, STEPS), name


def test_tensorboard_holds_each_update(trained: Trained, server: LiveServer) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained[0] / "runs" / "bits-triage"), size_guidance={"tensors": 0})
    events.Reload()
    rows = {item.step: item.tensor_proto.float_val[0] for item in events.Tensors("triage/window/abs_delta_mean")}
    assert rows == pytest.approx(wanted(server, "abs_delta_mean"), rel=1e-6)
    assert "triage/stage" in events.Tags()["tensors"]


def test_mlflow_holds_each_update_and_the_stage_in_a_run_of_its_own(
    trained: Trained, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(str(trained[0] / "mlruns"))
    (run,) = client.search_runs(["0"])
    rows = {
        item.step: item.value for item in client.get_metric_history(run.info.run_id, "triage/window/abs_delta_mean")
    }
    assert rows == wanted(server, "abs_delta_mean")
    assert (run.info.run_name, run.info.status) == ("bits-triage", "FINISHED")
    assert run.data.tags["triage.stage_name"] == "warming_up"


def test_mlflow_run_of_the_trainer_is_found_by_its_id_and_stays_open(server: LiveServer, at_home: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(str(at_home / "mlruns"))
    with mlflow.start_run() as run:
        with Monitor(server.address, run="by-id", mirror="mlflow") as monitor:
            monitor.submit(step=5, **an_update(5))
        assert mlflow.active_run().info.run_id == run.info.run_id
        found = mlflow.MlflowClient().get_run(run.info.run_id)
    assert (found.data.metrics["triage/params_version"], found.info.status) == (0.0, "RUNNING")


def test_wandb_run_of_its_own_holds_each_update_over_its_own_step(trained: Trained, server: LiveServer) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    (path,) = trained[0].glob("wandb/offline-run-*/*.wandb")
    records = wandb_records(path)
    assert ("triage/*", "triage/step") in [(one.metric.glob_name, one.metric.step_metric) for one in records]
    rows = [row for row in map(history, records) if row]
    assert {row["triage/step"]: row["triage/window/abs_delta_mean"] for row in rows} == wanted(server, "abs_delta_mean")
    assert rows[0]["triage/stage_name"] == "warming_up"
    assert [one.run.display_name for one in records if one.HasField("run")] == ["bits-triage"]


def test_wandb_run_of_the_trainer_keeps_its_rows_and_steps(server: LiveServer, at_home: Path) -> None:
    """The own run is no `wandb.init` of this process; the live one gets one update a row and no row more."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    own = Monitor(server.address, run="own", mirror="wandb:elsewhere")
    own.submit(step=0, **an_update(0))
    assert eventually(lambda: own.stats["mirrors"]["wandb"]["written"] == 1)
    run = wandb.init(project="trainer", settings=wandb.Settings(console="off", silent=True))
    assert run.project == "trainer"
    live = Monitor(server.address, run="live", mirror=run)
    run.log({"loss": 1.0}, step=0)
    for step in range(3):
        live.submit(step=step, **an_update(step))
        assert eventually(lambda n=step: live.stats["mirrors"]["wandb"]["written"] == n + 1)
        run.log({"loss": 1.0 / (step + 2)}, step=10 * (step + 1))
    assert live.close(20.0) and own.close(30.0)
    path = next(Path(run.dir).parent.glob("*.wandb"))
    run.finish()
    assert eventually(lambda: wandb_records(path)[-1].HasField("exit"))  # its own process writes the file
    rows = [row for row in map(history, wandb_records(path)) if row]
    assert [(row["_step"], row["loss"], row.get("triage/step")) for row in rows] == [
        *((0, 1.0, 0), (10, 0.5, 1), (20, 1 / 3, 2), (30, 0.25, None)),
    ]


def test_trackio_holds_each_update(trained: Trained, server: LiveServer, at_home: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed")
    script = (
        "import json, trackio; from trackio.sqlite_storage import SQLiteStorage as s;"
        "print(json.dumps(s.get_logs('triage-monitor', 'bits-triage')))"
    )
    env = {**os.environ, "TRACKIO_DIR": str(trained[0] / "trackio-data")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {row["step"]: row["triage/window/abs_delta_mean"] for row in rows} == wanted(server, "abs_delta_mean")


def wandb_records(path: Path) -> list[Any]:
    """Of an offline run's file: after 7 bytes a log of 32 KiB blocks, records of checksum, size, kind, content."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            found.append(Record.FromString(part))
            part = b""
    return found


def history(record: Any) -> dict[str, Any]:
    if not record.HasField("history"):
        return {}
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
