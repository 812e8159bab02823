"""`triage-monitor dashboards build` and `dashboards push`: Grafana dashboards as files, or uploaded.

triage-monitor dashboards build grafana/
triage-monitor dashboards push --url https://grafana.example --token "$TOKEN" --annotate my-run
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

DEFAULT_MONITOR = "http://127.0.0.1:8750"
DEFAULT_RUNBOOK = "README.md"
RunbookBase = Annotated[str, typer.Option(metavar="URL", help="The page that holds the README's runbook.")]
BUILD = "Example: triage-monitor dashboards build dashboards"
PUSH = "Example: triage-monitor dashboards push --url http://127.0.0.1:3000 --token TOKEN --annotate my-run"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Grafana dashboards: fleet, run, research.")
    group.command(epilog=BUILD)(build)
    group.command(epilog=PUSH)(push)
    app.add_typer(group, name="dashboards")


def build(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files go.")] = Path("dashboards"),
    runbook_base: RunbookBase = DEFAULT_RUNBOOK,
    rules: Annotated[
        Path | None, typer.Option(help="Prometheus rules to write into DIR too, with links to that runbook.")
    ] = None,
) -> None:
    """Write the dashboards as JSON files, for provisioning or for Grafana's import."""
    from triage_monitor.dashboards.build import write

    for path in write(folder, runbook_base, rules):
        print(path)


def push(
    url: Annotated[str, typer.Option(help="Address of the Grafana.", show_default=False)],
    token: Annotated[str, typer.Option(envvar="GRAFANA_TOKEN", help="Token of a service account.", show_default=False)],
    folder: Annotated[str | None, typer.Option(help="Uid of the folder they go into.")] = None,
    annotate: Annotated[list[str] | None, typer.Option(help="Run whose stages and actions become annotations.")] = None,
    monitor: Annotated[str, typer.Option(envvar="TRIAGE_URL", help="The sidecar, for --annotate.")] = DEFAULT_MONITOR,
    runbook_base: RunbookBase = DEFAULT_RUNBOOK,
) -> None:
    """Upload the dashboards to a Grafana, over older ones of the same uid."""
    from triage_monitor.cli.operator import call
    from triage_monitor.dashboards.build import dashboards
    from triage_monitor.dashboards.push import Grafana, marks
    from triage_monitor.trainer.transport import checked_url

    grafana = Grafana(checked_url(url), token)
    for board in dashboards(runbook_base).values():
        print(f"{board['title']}: {url.rstrip('/')}{grafana.upload(board, folder)}")
    for run in annotate or ():
        base = f"/v1/runs/{quote(run, safe='')}"
        transitions = call("GET", monitor, f"{base}/transitions?limit=1000").json()["transitions"]
        actions = call("GET", monitor, f"{base}/actions?limit=1000").json()["actions"]
        print(f"{run}: {grafana.annotate(marks(run, transitions, actions))} new annotations")
