"""The command tree of `triage-monitor`; every command lives in its own file and imports what it needs when it runs.

Exit codes: 0 done, 1 a problem was found or the command failed, 2 bad usage or bad input. Results go to stdout,
progress and errors to stderr; a wrong input ends in one sentence, never in a traceback.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from triage_monitor.errors import ConfigError, InputError, TriageError

COMMANDS = ("demo", "serve", "analyze", "replay", "bench", "operator")


def build_app() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Early warning and control for low-precision RL.")
    for name in COMMANDS:
        import_module(f"triage_monitor.cli.{name}").register(app)
    return app


def run() -> None:
    try:
        build_app()()
    except (InputError, ConfigError) as error:
        print(f"triage-monitor: {error}", file=sys.stderr)
        sys.exit(2)
    except TriageError as error:
        print(f"triage-monitor: {error}", file=sys.stderr)
        sys.exit(1)
