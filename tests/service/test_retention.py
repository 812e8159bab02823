"""What a run's recording holds is what its updates were made of."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
from service.live_server import STREAM, LiveServer, arrow, serving

from triage_monitor.config import Settings
from triage_monitor.storage.recordings import iter_updates


def settings(home: Path) -> Settings:
    return Settings.from_dict({"server": {"port": 0}, "store": {"data_dir": str(home), "retain_raw": True}})


def test_refused_shard_leaves_nothing_in_the_recording_in_the_place_of_the_right_one(tmp_path: Path) -> None:
    """A rank that restarts with a wrong world size is refused; what it sends afterwards is the update's."""
    with serving(settings(tmp_path)) as live:
        assert live.put("run", 1, arrow([[0.1]], [1.0]), shard=0, shards=2).status_code == 201
        assert live.put("run", 1, arrow([[9.0]], [1.0]), shard=1, shards=4).status_code == 409
        assert live.put("run", 1, arrow([[-0.2]], [1.0]), shard=1, shards=2).status_code == 201
        assert live.put("run", 2, arrow([[0.3]], [1.0])).status_code == 201
        assert live.put("run", 2, arrow([[8.0]], [1.0]), shard=1, shards=2).status_code == 409
    kept = []
    for update in iter_updates([tmp_path / "recordings" / "run"]):
        assert update.rows.gap is not None
        kept += [(update.step, round(float(gap), 3)) for gap in update.rows.gap]
    assert sorted(kept) == [(1, -0.2), (1, 0.1), (2, 0.3)]


def test_recording_that_cannot_be_written_is_told_by_readiness_until_it_can(tmp_path: Path) -> None:
    """Every shard is refused meanwhile, although the store itself takes writes."""
    in_the_way = tmp_path / "recordings"
    in_the_way.touch()
    with serving(settings(tmp_path)) as live:
        refused = live.put("run", 1, arrow([[0.1]], [1.0]))
        assert (refused.status_code, refused.json()["reason"]) == (507, "store_full")
        readiness = live.http.get("/readyz")
        assert (readiness.status_code, readiness.json()["store"]) == (503, refused.json()["detail"])
        in_the_way.unlink()
        until = time.monotonic() + 60
        while live.http.get("/readyz").status_code != 200 and time.monotonic() < until:
            threading.Event().wait(0.1)
        assert live.http.get("/readyz").json()["store"] == "ok", "nobody has sent anything meanwhile"
        assert live.put("run", 1, arrow([[0.1]], [1.0])).status_code == 201
        assert live.http.get("/readyz").status_code == 200
    assert [update.step for update in iter_updates([tmp_path / "recordings" / "run"])] == [1]


def test_recording_whose_directory_is_taken_away_goes_on_in_a_new_one(tmp_path: Path) -> None:
    """It was refused 507 until the next start, by a monitor whose disk took everything."""
    recordings = tmp_path / "recordings"
    with serving(settings(tmp_path)) as live:
        assert live.put("run", 1, arrow([[0.1]], [1.0])).status_code == 201
        recordings.rename(tmp_path / "archive")
        assert live.put("run", 2, arrow([[0.2]], [1.0])).status_code == 201
        assert live.http.get("/readyz").status_code == 200
    assert [update.step for update in iter_updates([recordings / "run"])] == [2]
    assert [update.step for update in iter_updates([tmp_path / "archive" / "run"])] == [1]


def test_shard_that_the_recording_took_at_the_second_try_is_in_it(tmp_path: Path) -> None:
    """With other content than the first one, which was refused. Looked at while the monitor runs: it may be killed."""
    recordings = tmp_path / "recordings"
    with serving(settings(tmp_path)) as live:
        assert live.put("run", 1, arrow([[0.1]], [1.0])).status_code == 201
        recordings.rename(tmp_path / "archive")
        recordings.touch()
        assert live.put("run", 2, arrow([[9.0]], [1.0])).status_code == 507
        recordings.unlink()
        assert live.put("run", 2, arrow([[0.25]], [1.0])).status_code == 201
        (update,) = iter_updates([recordings / "run"])
        assert update.rows.gap is not None and (update.step, update.rows.gap.tolist()) == (2, [0.25])


def test_of_two_contents_of_one_shard_at_once_the_recording_keeps_the_one_that_was_taken(tmp_path: Path) -> None:
    """Two ranks that both send as shard 0: one is refused, and nothing of it may be in the recording."""
    steps, both = range(1, 41), threading.Barrier(2)
    answers: dict[tuple[int, float], int] = {}

    def send(live: LiveServer, gap: float) -> None:
        with httpx.Client(base_url=live.address, trust_env=False, timeout=60) as http:
            for step in steps:
                both.wait(60)
                address = f"/v1/runs/run/updates/{step}/shards/0"
                answers[step, gap] = http.put(address, content=arrow([[gap]], [1.0]), headers=STREAM).status_code

    with serving(settings(tmp_path)) as live:
        senders = [threading.Thread(target=send, args=(live, gap)) for gap in (0.25, -0.5)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert [sorted(answers[step, gap] for gap in (0.25, -0.5)) for step in steps] == [[201, 409]] * len(steps)
    taken = {step: gap for (step, gap), status in answers.items() if status == 201}
    kept: dict[int, float] = {}
    for update in iter_updates([tmp_path / "recordings" / "run"]):
        assert update.rows.gap is not None
        kept[update.step] = float(update.rows.gap[0])
    assert kept == taken
