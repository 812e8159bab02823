"""`triage-monitor tail`: follows a directory in which a framework dumps its training data, and submits each step.

No code runs in the trainer. A step is sent once it is whole (storage/dumps_follow.py), by the calls a trainer makes,
and remembered in a state file once every shard of it was acknowledged; after a restart only the rest is sent, and
without the file everything is sent again and changes nothing. A step that comes back with other content was written by
a resumed trainer: it begins a new attempt. A dump that cannot be read is told once, with file, line and field, and
passed over.

Memory is bounded by one step. Several launches below the directory are runs of their own, or attempts of `--run`.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: triage-monitor tail logs/exp_001 --to http://127.0.0.1:8750 --run my-run"
SECONDS = (2.0, 10.0, 60.0)  # to connect, of silence, and for one call


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLE)(tail)


def tail(
    directory: Annotated[Path, typer.Argument(help="Where the framework writes its dumps.", show_default=False)],
    to: Annotated[str, typer.Option(help="Address of the server.", metavar="URL", show_default=False)],
    run: Annotated[str | None, typer.Option(help="Name of the run; by default the directory's.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Send what is there and end.")] = False,
    state: Annotated[
        Path | None, typer.Option(help="Where to remember; by default DIRECTORY/.triage-tail.json.")
    ] = None,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds between two looks.")] = 1.0,
    settle: Annotated[
        float, typer.Option(min=0, help="Seconds of quiet after which an unmarked file is whole.")
    ] = 10.0,
    token: Annotated[
        str | None, typer.Option(help="Bearer token; better by the environment.", envvar="TRIAGE_TOKEN")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to keep trying one call; by default 60 with --once, else no end."),
    ] = None,
) -> None:
    """Follow a framework's dumps (NeMo RL, prime-rl, slime, miles) and submit them as its trainer would."""
    from triage_monitor.cli.tail_state import TailState
    from triage_monitor.cli.tail_submit import Submitter, run_name
    from triage_monitor.errors import InputError
    from triage_monitor.storage.dumps_follow import Follower
    from triage_monitor.trainer.tls import tls_of, token_of
    from triage_monitor.trainer.transport import Link, Timeouts, checked_url

    address = checked_url(to)
    if run is not None and run_name(run) != run:
        detail = f"'{run}' must be 1 to 128 of A-Z a-z 0-9 . _ - and not begin with a dot"
        raise InputError("run_name", detail)
    if not directory.is_dir():
        raise InputError("not_found", "is no directory", path=str(directory))
    context = tls_of(os.environ) if address.startswith("https:") else None
    longest = patience if patience is not None else 60.0 if once else float("inf")
    with closing(Link(address, token_of(token, {}), Timeouts(*SECONDS), context)) as link, suppress(KeyboardInterrupt):
        kept = TailState(state or directory / ".triage-tail.json", f"{address} {run or ''}".strip())
        submitter = Submitter(link, kept, run, longest)
        follower = Follower(directory, settle)
        while True:
            steps = follower.whole(time.monotonic(), is_last_look=once)
            submitter.pass_over(follower.unreadable)
            submitter.take(steps)
            if once:
                break
            time.sleep(poll)
        print(submitter.said())
        if submitter.refused:
            sys.exit(2)
