"""`doctor --framework NAME`: do the hooks that an adapter relies on exist in the framework installed here.

Read from its sources, nothing is imported and nothing is asked of a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from triage_monitor.cli.checkup import Finding, good, note, problem
from triage_monitor.cli.checkup_machine import native
from triage_monitor.errors import ConfigError
from triage_monitor.trainer.adapters.frameworks import FRAMEWORKS, differences, source_of


def framework(name: str) -> Iterator[Finding]:
    """ConfigError for a name that there is no adapter for."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"--framework knows {', '.join(FRAMEWORKS)}, not {name!r}")
    known = FRAMEWORKS[name]
    if source_of(known.package) is None:
        fix = f"run this where {name} trains, with the trainer's own Python"
        yield problem("package", f"there is no package {known.package} in this environment", fix)
        return
    yield good(
        "package", f"{known.package} {_installed(name, known.package)}; the adapter was read against {known.version}"
    )
    for hook, difference in differences(known):
        area = "hook"
        if difference:
            fix = f"use {name} {known.version}, or a newer triage-monitor; until then send recorded updates"
            yield problem(area, difference, fix)
        else:
            yield good(area, f"{hook.module}: {hook.name}({', '.join(hook.parameters)})")
    yield note("log-probs", f"the sampler's are kept with: {known.asks_log_probs}")
    yield native()
    yield note("activation", known.activation.replace("`", "").replace("..", "triage_monitor.trainer.adapters.", 1))


def _installed(name: str, package: str) -> str:
    for distribution in (name, package):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "without a version"
