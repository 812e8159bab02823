"""The command tree of `triage-monitor`; every command lives in its own file and imports what it needs when it runs.

A file of this package that defines `register(app)` adds its commands; COMMANDS gives the order in the help. Exit codes:
0 done, 1 a problem was found or the command failed, 2 bad usage or bad input. Results go to stdout, progress and errors
to stderr; a wrong input ends in one sentence, never in a traceback.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

import typer

from triage_monitor.errors import ConfigError, InputError, TriageError

COMMANDS = (
    "demo",
    "serve",
    "analyze",
    "replay",
    "tail",
    "simulate",
    "bench",
    "corpus",
    "dashboards",
    "operator",
    "forensics",
    "transfer",
    "doctor",
    "token",
    "audit",
)


def build_app() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Early warning and control for low-precision reinforcement learning of language models.",
        epilog="Each command has its own --help with an example.",
    )
    for name in COMMANDS:
        if find_spec(f"triage_monitor.cli.{name}") is not None:
            import_module(f"triage_monitor.cli.{name}").register(app)

    @app.callback()
    def _several() -> None:
        """Keeps the command names even when there is only one."""

    return app


def run() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be text in the terminal's encoding
    try:
        build_app()()
    except (InputError, ConfigError) as error:
        _end(2, str(error))
    except TriageError as error:
        _end(1, str(error))
    except OSError as error:
        _end(2, f"{error.filename or 'system'}: {error.strerror or error}")
    except UnicodeError as error:
        _end(2, f"an argument is no text, or names no host: {error}")


def _end(code: int, sentence: str) -> NoReturn:
    """One line, whatever it quotes of arguments and answers."""
    plain = "".join(sign if sign.isprintable() else "?" for sign in sentence)
    print(f"triage-monitor: {plain}", file=sys.stderr)
    sys.exit(code)
