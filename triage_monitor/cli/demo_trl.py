"""`triage-monitor demo --framework trl`: a real GRPOTrainer, a real sidecar, and parameters that move during the run.

The sidecar starts as a process of its own; TRL trains a tiny random model in this one (testbed/trl_run.py). After a
third of the updates gate and repair are turned on through the operator's call, as `triage-monitor params RUN --set`
would; the trainer takes the set at its next update and acknowledges it. The table compares the two parts. Both parts
are one run of a toy: it shows the loop working, not what gate and repair are worth.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

RUN = "trl"
UPDATES = 60
CHANGES = ("gate.enabled=true", "gate.segment=8", "gate.w_min=0.3", "repair.enabled=true", "repair.lambda_rep=1.0")
WAIT_SECONDS = 20.0
CONFIG = """\
[summary]
segment = 8

[judge.policy]
mode = "observe"
"""
SERIES = ("reward_mean", "abs_delta_mean", "rho_asym")
TOLD = ("triage/gated_token_fraction", "triage/repair_fire_fraction", "triage/params_version")


def run_trl(home: Path, updates: int, seed: int, port: int) -> dict[str, Any]:
    """Trains; the report is also written to report.json in `home`."""
    from triage_monitor.cli.demo import sidecar

    home.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with sidecar(home, port, CONFIG) as address:
        log = _train(home, updates, seed, address)
        report = _gather(address, updates // 3)
    report |= {"directory": str(home), "seconds": time.monotonic() - started, "trl": log}
    (home / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _train(home: Path, updates: int, seed: int, address: str) -> list[dict[str, Any]]:
    from triage_monitor.cli.operator import set_params
    from triage_monitor.testbed.trl_run import TrlPlan, train
    from triage_monitor.trainer import Monitor

    settings = {"temperature": 1.0, "precision": "nvfp4", "logprobs_mode": "processed_logprobs", "learner": "theta"}

    with Monitor(address, run=RUN, settings=settings) as monitor:

        def at_step(step: int) -> None:
            if step == updates // 3:
                _until(lambda: monitor.stats["acknowledged"] > 0)
                issued = set_params(address, RUN, list(CHANGES), "the demo turns gate and repair on")["version"]
                _until(lambda: monitor.params.version >= issued)  # a short run would be over before it arrived

        return train(TrlPlan(updates, home / "trl", seed), monitor, at_step)


def _until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _gather(address: str, changed_at: int) -> dict[str, Any]:
    from triage_monitor.cli.operator import call

    detail = call("GET", address, f"/v1/runs/{RUN}").json()
    query = "&".join(f"name={name}" for name in SERIES)
    series = call("GET", address, f"/v1/runs/{RUN}/series?scope=update&{query}").json()["series"]
    halves: dict[str, dict[str, float | None]] = {"before": {}, "after": {}}
    for one in series:
        told = [(step, value) for step, value in zip(one["steps"], one["values"], strict=True) if value is not None]
        halves["before"][one["name"]] = _mean([value for step, value in told if step < changed_at])
        halves["after"][one["name"]] = _mean([value for step, value in told if step >= changed_at])
    return {"detail": detail, "changed_at": changed_at, **halves}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def show(report: dict[str, Any]) -> None:
    from triage_monitor.cli.demo_view import number

    at, log = report["changed_at"], report["trl"]
    print(f"{'':<28} {f'updates 0 to {at - 1}':>18} {f'{at} to {len(log) - 1}':>14}")
    for name in SERIES:
        print(f"{name:<28} {number(report['before'].get(name)):>18} {number(report['after'].get(name)):>14}")
    for name in TOLD:
        first, last = (_mean([entry[name] for entry in part if name in entry]) for part in (log[:at], log[at:]))
        print(f"{name:<28} {number(first):>18} {number(last):>14}")
    detail = report["detail"]
    print(
        f"\nsidecar: {detail['last_update']['step'] + 1} updates, stage {detail['stage']}, parameters applied:", end=" "
    )
    print(f"v{_applied(detail)}; kept in {report['directory']}; {report['seconds']:.0f} s")


def _applied(detail: dict[str, Any]) -> Any:
    applied = detail.get("params_applied")
    return applied.get("version") if isinstance(applied, dict) else applied
