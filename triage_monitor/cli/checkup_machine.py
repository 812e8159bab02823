"""What `doctor` says about the machine it runs on: could NVFP4 be executed natively here.

A note, never a problem: emulation and bf16 run anywhere. torch is imported only where it is installed; the engine only
where a GPU could run it.
"""

from __future__ import annotations

from importlib.util import find_spec

from triage_monitor.cli.checkup import Finding, good, note

AREA = "nvfp4"


def native() -> Finding:
    if find_spec("torch") is None:
        return note(AREA, "no torch in this environment: ask where you train whether NVFP4 can run natively")
    from triage_monitor.trainer.native import found_here

    found = found_here()
    engine = f"transformer-engine {found.engine}" if found.engine else "transformer-engine is not installed"
    refusal = found.refusal()
    if refusal is not None:
        return note(AREA, refusal if "transformer-engine" in refusal else f"{refusal}; {engine}")
    assert found.capability is not None  # or there were a refusal
    major, minor = found.capability
    return good(AREA, f"{found.gpu} of compute capability {major}.{minor} and {engine} can run NVFP4 natively")
