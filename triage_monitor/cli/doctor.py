"""`triage-monitor doctor`: is everything in place between trainer, sidecar and Prometheus, and if not, what to do.

Exit code 0: nothing to do; 1: something needs a person; 2: the address or a file given is none.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

EXAMPLE = "Example: triage-monitor doctor http://127.0.0.1:8750 --prometheus http://127.0.0.1:9090"
DEFAULT_URL = "http://127.0.0.1:8750"


def register(app: typer.Typer) -> None:
    @app.command(epilog=EXAMPLE)
    def doctor(
        address: Annotated[str | None, typer.Argument(metavar="[URL]", help="The sidecar's address.")] = None,
        url: Annotated[str, typer.Option("--url", envvar="TRIAGE_URL", help="The same, as an option.")] = DEFAULT_URL,
        prometheus: Annotated[str | None, typer.Option(help="Address of a Prometheus that should scrape it.")] = None,
        framework: Annotated[
            str | None, typer.Option(help="Check the hooks of this RL framework, as installed here, and nothing else.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json")] = False,
    ) -> None:
        """Check a server, its surroundings and its runs; exit 1 when something needs a person."""
        import os

        from triage_monitor.cli import checkup, checkup_framework

        asked = address or url
        if framework is not None:
            asked, findings = framework, list(checkup_framework.framework(framework))
        else:
            findings = list(checkup.examine(asked, prometheus, os.environ))
        if as_json:
            print(json.dumps(checkup.as_json(asked, findings)))
        else:
            print("\n".join(checkup.table(findings)))
        if any(item.state is checkup.State.PROBLEM for item in findings):
            raise typer.Exit(1)
