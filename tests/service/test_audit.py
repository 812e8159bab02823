"""The trail of control changes: who, why, before and after; and every way of tampering with it that must show."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from service.access_help import bearer, guarded
from service.live_server import STREAM, masses
from typer.testing import CliRunner

from triage_monitor.cli import audit as audit_command
from triage_monitor.storage.audit import WITNESS_FILE, Head
from triage_monitor.storage.audit_verify import verify
from triage_monitor.storage.audit_witness import Witness, read_witness
from triage_monitor.storage.records import AuditRow
from triage_monitor.storage.rowcodec import encode_row
from triage_monitor.storage.sqlite import SqliteStore

Change = Callable[[sqlite3.Connection], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A data directory after six control changes by different hands, and the trail as the server told it."""
    home = tmp_path_factory.mktemp("audit")
    store = SqliteStore(home)
    hooks = {"actions": {"Alarm": "pause"}}
    with guarded(home, store, store={"data_dir": str(home)}, hooks=hooks) as (server, secrets):
        http, ops = server.http, {**bearer(secrets["ops"]), "If-Match": "*"}
        server.put("run", 1, masses(3, 2), headers={**STREAM, **bearer(secrets["trainer-a"])})
        server.put("other", 1, masses(3, 2), headers={**STREAM, **bearer(secrets["trainer-a"])})
        done = [http.put("/v1/runs/run/params", json={"gate": {"w_min": 0.4}, "reason": "tail"}, headers=ops)]
        act = {**ops, "Triage-Actor": "alice"}
        for key, body in (("k1", {"kind": "gate", "w_min": 7}), ("k2", {"kind": "freeze"}), ("k3", {"kind": "stop"})):
            done.append(http.post("/v1/runs/run/actions", json=body, headers={**act, "Idempotency-Key": key}))
        begin = {"from_step": 5, "launch_id": "again"}
        done.append(http.post("/v1/runs/run/attempts", json=begin, headers=bearer(secrets["trainer-a"])))
        alert = {"alerts": [{"labels": {"alertname": "Alarm", "run": "run"}, "startsAt": "now", "fingerprint": "f"}]}
        done.append(http.post("/v1/hooks/grafana", json=alert, headers=bearer(secrets["all"])))
        assert [answer.status_code for answer in done] == [200, 422, 201, 201, 201, 200]
        told = http.get("/v1/runs/run/audit").json()
        told["actions"] = http.get("/v1/runs/run/actions").json()["actions"]
    store.close()
    return home, told


def copied(made: tuple[Path, dict[str, Any]], to: Path, *changes: Change | str) -> Path:
    """The directory with changes made by someone who can write the database: SQL, or a function of it."""
    with sqlite3.connect(made[0] / "triage.db") as source, sqlite3.connect(to / "triage.db") as target:
        source.backup(target)
        for change in changes:
            target.execute(change) if isinstance(change, str) else change(target)
    source.close()
    target.close()
    (to / WITNESS_FILE).write_bytes((made[0] / WITNESS_FILE).read_bytes())
    return to


def faults(home: Path) -> str:
    return "; ".join(fault for trail in verify(home, home / WITNESS_FILE) for fault in trail.faults)


def rewritten(entry: int, **changes: Any) -> Change:
    """Replaces an entry by one whose row checksum is right and whose link is as it was."""

    def change(db: sqlite3.Connection) -> None:
        columns = ", ".join(AuditRow.columns())
        sql = f"SELECT {columns} FROM audit WHERE run = 'run' AND number = ?"
        cells = dict(zip(AuditRow.columns(), db.execute(sql, (entry,)).fetchone(), strict=True))
        for name in ("before", "after", "about"):
            cells[name] = json.loads(cells[name])
        row = encode_row(AuditRow(**{**cells, **changes}))
        db.execute(f"INSERT OR REPLACE INTO audit VALUES ({', '.join('?' * len(row))})", row)

    return change


def test_trail_says_who_when_why_before_and_after(made: tuple[Path, dict[str, Any]]) -> None:
    entries = made[1]["entries"]
    assert [(item["who"], item["actor"], item["kind"], item["outcome"]) for item in entries] == [
        ("policy", "policy", "start", "applied"),
        ("ops", "ops", "override", "applied"),
        ("ops", "ops:alice", "gate", "refused"),
        ("ops", "ops:alice", "freeze", "applied"),
        ("ops", "ops:alice", "stop", "applied"),
        ("trainer-a", "trainer", "attempt", "applied"),
        ("all", "grafana", "pause", "applied"),
    ]
    override = entries[1]
    assert (override["reason"], override["before"]["gate.w_min"], override["after"]["gate.w_min"]) == ("tail", 0.5, 0.4)
    assert (override["before"]["held_by"], override["after"]["held_by"]) == (None, "ops")
    assert (override["before"]["version"], override["after"]["version"]) == (1, 2)
    assert entries[2]["before"] == entries[2]["after"] == {} and "gate.w_min" in entries[2]["reason"]
    assert entries[3]["after"] == {"held_by": "ops:alice"}
    assert (entries[5]["before"]["control"], entries[5]["after"]["control"]) == ("stop", "run")
    assert made[1]["head"] == {"number": 7, "link": entries[-1]["link"]}
    assert [item["kind"] for item in made[1]["actions"]] == ["override", "gate", "freeze", "stop", "pause"]


def test_untouched_trail_verifies_and_its_head_is_the_one_the_server_told(made: tuple[Path, dict[str, Any]]) -> None:
    trails = {trail.run: trail for trail in verify(made[0], made[0] / WITNESS_FILE)}
    assert set(trails) == {"run", "other"}
    assert [trail.faults for trail in trails.values()] == [(), ()]
    assert trails["run"].head == Head(7, made[1]["head"]["link"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("UPDATE audit SET actor = 'bob' WHERE number = 3",), "entry 3 is damaged"),
        ((rewritten(3, actor="bob"),), "entry 3 was changed"),
        ((rewritten(2, reason="another"),), "entry 2 was changed"),
        ((rewritten(5, at=1.0),), "entry 5 was changed"),
        (("DELETE FROM audit WHERE run = 'run' AND number = 4",), "entry 4 is missing"),
        (("DELETE FROM audit WHERE run = 'run' AND number = 1",), "entry 1 is missing"),
        (("DELETE FROM audit WHERE run = 'run' AND number = 7",), "entry 7 was cut off"),
        (("DELETE FROM audit WHERE run = 'run' AND number > 2",), "entry 3 was cut off"),
        (("DELETE FROM audit WHERE run = 'other'", "DELETE FROM runs WHERE run = 'other'"), "entry 1 was cut off"),
        (("DELETE FROM params WHERE run = 'run' AND version = 2",), "parameter version 2 is missing"),
        (("DELETE FROM actions WHERE run = 'run' AND number = 3",), "action 3 is missing"),
        (("UPDATE actions SET kind = 'resume' WHERE number = 2",), "action 2 is damaged"),
        ((rewritten(3, number=9),), "entry 8 is missing"),
    ],
)
def test_tampering_shows(
    made: tuple[Path, dict[str, Any]], tmp_path: Path, changes: tuple[Change | str, ...], told: str
) -> None:
    assert told in faults(copied(made, tmp_path, *changes))


def test_two_entries_that_change_places_show(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    entries = [{name: item[name] for name in AuditRow.columns()} for item in made[1]["entries"]]
    swapped = (rewritten(3, **{**entries[3], "number": 3}), rewritten(4, **{**entries[2], "number": 4}))
    found = faults(copied(made, tmp_path, *swapped))
    assert "entry 3 was changed" in found and "entry 4 was changed" in found


def test_whole_new_chain_shows_by_the_witness_and_both_rewritten_by_a_kept_link(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    from triage_monitor.storage.audit import first_head, link_of

    def forge(db: sqlite3.Connection) -> None:
        previous = first_head("run").link
        for item in made[1]["entries"]:
            entry = {**item, "previous": previous, "reason": "nothing happened"}
            previous = link_of(AuditRow(**entry))
            rewritten(item["number"], **{**entry, "link": previous})(db)
            links[entry["number"]] = previous

    links: dict[int, str] = {}
    home = copied(made, tmp_path, forge)
    assert "entry 1 is not the one that was witnessed" in faults(home)
    lines = [json.loads(line) for line in (home / WITNESS_FILE).read_text().splitlines()]
    forged = [{**line, "link": links[line["number"]]} if line["run"] == "run" else line for line in lines]
    (home / WITNESS_FILE).write_text("".join(json.dumps(line) + "\n" for line in forged))
    assert faults(home) == ""  # the limit: whoever rewrites both files is only caught by a link kept elsewhere
    head = made[1]["head"]
    kept = verify(home, home / WITNESS_FILE, {"run": Head(head["number"], head["link"])})
    assert [trail.faults for trail in kept if trail.run == "run"] == [("entry 7 is not the expected one",)]


def command(*words: str) -> Result:
    app = typer.Typer()
    audit_command.register(app)
    return CliRunner().invoke(app, ["audit", "verify", *words], env={"COLUMNS": "200"})


def test_command_prints_heads_and_exits_1_when_the_trail_is_broken(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    head = made[1]["head"]
    whole = command("--data-dir", str(made[0]), "--expect", f"run:7:{head['link']}")
    assert whole.exit_code == 0, whole.output
    assert f"whole   run: 7 entries, newest link {head['link']}" in whole.output
    broken = command("--data-dir", str(copied(made, tmp_path, "DELETE FROM audit WHERE number = 4")))
    assert broken.exit_code == 1 and "entry 4 is missing" in broken.output
    assert command("--data-dir", str(made[0]), "--expect", f"nobody:1:{head['link']}").exit_code == 1
    assert "no store" in str(command("--data-dir", str(tmp_path / "nothing")).exception)
    for wrong in ("run:x", f"run:²:{'0' * 64}", f"run:{'9' * 5000}:{'0' * 64}", "run:1:²"):
        assert "run:number:link" in str(command("--data-dir", str(made[0]), "--expect", wrong).exception)


def test_line_cut_short_and_links_the_crash_kept_from_the_witness_are_mended_at_the_start(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    home = copied(made, tmp_path)
    path = home / WITNESS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:20])
    store = SqliteStore(home)
    witness = Witness(path)
    witness.reconcile(store)
    store.close()
    assert (witness.failures, witness.missing) == (0, 0)
    assert sorted(read_witness(path)[0]["run"]) == [1, 2, 3, 4, 5, 6, 7]
    assert faults(home) == ""


def test_store_behind_its_witness_is_counted_at_the_start_and_the_witness_stays(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    home = copied(made, tmp_path, "DELETE FROM audit WHERE run = 'run' AND number > 4")
    before = (home / WITNESS_FILE).read_bytes()
    store = SqliteStore(home)
    witness = Witness(home / WITNESS_FILE)
    witness.reconcile(store)
    store.close()
    assert witness.missing == 3
    assert (home / WITNESS_FILE).read_bytes() == before


def test_witness_that_cannot_be_written_is_counted_and_caught_up_with(tmp_path: Path) -> None:
    row = AuditRow("run", 1, 1.0, "ops", "ops", "pause", "applied", "", {}, {}, {}, "p", "a" * 64)
    witness = Witness(tmp_path / "missing" / "w.jsonl")
    witness.note([row])
    assert witness.failures == 1
    (tmp_path / "missing").mkdir()
    witness.note([])
    assert read_witness(tmp_path / "missing" / "w.jsonl") == ({"run": {1: Head(1, "a" * 64)}}, 0)


def test_witness_that_cannot_be_read_is_counted_and_holds_no_start_up(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    home = copied(made, tmp_path)
    (tmp_path / "directory").mkdir()
    store = SqliteStore(home)
    witness = Witness(tmp_path / "directory")
    witness.reconcile(store)
    store.close()
    assert (witness.failures, witness.missing) == (1, 0)


_FULL = """
    import resource, sys
    from pathlib import Path
    from triage_monitor.storage.audit_witness import Witness
    from triage_monitor.storage.records import AuditRow
    path = Path(sys.argv[1])
    rows = [AuditRow("run", number, 1.0, "o", "o", "pause", "applied", "", {}, {}, {}, "p", "a" * 64)
            for number in (1, 2, 3)]
    witness = Witness(path)
    witness.note(rows[:1])
    size = path.stat().st_size
    for row in rows[1:]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
        witness.note([row])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(witness.failures, path.stat().st_size == size)
    witness.note([])
"""


def test_disk_that_takes_a_part_of_a_line_takes_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(_FULL), str(path)], capture_output=True, text=True)
    assert (child.returncode, child.stdout) == (0, "2 True\n"), child.stderr
    assert read_witness(path) == ({"run": {number: Head(number, "a" * 64) for number in (1, 2, 3)}}, 0)


_NO_DESCRIPTOR = """
    import os, resource, sys
    from pathlib import Path
    from triage_monitor.errors import ConfigError
    from triage_monitor.storage.audit_verify import verify
    top = os.open("/dev/null", 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, top + 1))
    try:
        verify(Path(sys.argv[1]), Path(sys.argv[1]) / "none")
    except ConfigError as error:
        print(error)
"""


def test_store_that_cannot_be_opened_is_named(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """No right to read it, or no descriptor left for it."""
    home = copied(made, tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(_NO_DESCRIPTOR), str(home)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == f"{home}/triage.db has no audit trail that can be read: unable to open database file\n"
