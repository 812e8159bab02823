"""The README: its tables are what the code says, and its trainer example runs against a real sidecar."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import torch

from triage_monitor import Monitor
from triage_monitor.cli.tables import TABLES, refreshed

README = Path(__file__).parent.parent / "README.md"
STEPS = 3


def test_reference_tables_are_what_the_code_says() -> None:
    text = README.read_text(encoding="utf-8")
    assert all(f"<!-- table: {name} -->" in text for name in TABLES)
    assert refreshed(text) == text


def test_trainer_example_streams_to_a_real_sidecar_and_takes_its_parameters(tmp_path: Path) -> None:
    code = re.search(r"executed by tests/test_readme.py -->\n```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert code is not None
    config = tmp_path / "config.toml"
    config.write_text('[judge.policy]\nmode = "paper"\n', encoding="utf-8")
    command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--config", str(config)]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip().rpartition(" ")[2]
            _first_update(url)
            names = _trainer(url)
            exec(compile(code[1], "README.md", "exec"), names)
            run = httpx.get(f"{url}/v1/runs/my-run").json()
        finally:
            server.terminate()
    assert run["last_update"]["step"] == STEPS - 1
    assert run["last_update"]["counts"]["valid_tokens"] == 4 * 16
    assert names["losses"] == sorted(names["losses"], reverse=True)


def _first_update(url: str) -> None:
    """A fresh clone compiles while it takes the first one; the example's `close` should not have to wait for that."""
    monitor = Monitor(url, run="warm")
    monitor.submit(step=0, gap=[-0.1] * 4, advantages=[1.0], offsets=[0, 4])
    assert monitor.close(timeout=150)


def _trainer(url: str) -> dict[str, object]:
    """What the example leaves to its reader: a rollout, a learner and an optimiser step, as small as can be."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, 16, requires_grad=True)
    sampler = -1.0 + 0.1 * torch.randn(4, 16, generator=generator)
    losses: list[float] = []

    def rollout(step: int) -> SimpleNamespace:
        return SimpleNamespace(
            advantages=torch.tensor([1.0, -1.0, 0.5, -0.5]),
            sampler_logprobs=sampler,
            mask=torch.ones(4, 16, dtype=torch.bool),
            rewards=torch.tensor([1.0, 0.0, 0.5, 0.2]),
        )

    def learner(batch: SimpleNamespace) -> torch.Tensor:
        return -1.0 + logits

    def optimize(loss: torch.Tensor) -> float:
        losses.append(float((logits.detach() * torch.tensor([-1.0, 1.0, -0.5, 0.5])[:, None]).mean()))
        (gradient,) = torch.autograd.grad(loss, [logits])
        with torch.no_grad():
            logits.sub_(gradient)
        return float(gradient.norm())

    return {
        "MONITOR_URL": url,
        "STEPS": STEPS,
        "rollout": rollout,
        "learner": learner,
        "optimize": optimize,
        "losses": losses,
    }
