"""`triage-monitor audit verify`: proves the trail of control changes of a store, or says where it is broken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triage_monitor.errors import InputError

if TYPE_CHECKING:
    from triage_monitor.storage.audit import Head

EXAMPLE = "Example: triage-monitor audit verify --data-dir ./triage-data --expect my-run:12:9f2c...e1"


def register(app: typer.Typer) -> None:
    audit = typer.Typer(no_args_is_help=True, help="The hash-chained trail of control changes.")
    audit.command(epilog=EXAMPLE)(verify)
    audit.callback()(_several)
    app.add_typer(audit, name="audit")


def _several() -> None:
    """Keeps the command's name even while it is the only one."""


def verify(
    data_dir: Annotated[Path, typer.Option(help="The sidecar's data directory; it may be running.")] = Path(
        "triage-data"
    ),
    witness: Annotated[
        Path | None, typer.Option(help="The witness file, where it is not in the data directory.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(help="run:number:link that you kept (the API and webhooks say them); any number."),
    ] = None,
) -> None:
    """Check every link, the witness and what the links speak of. Exit 1 when something was changed, cut or removed."""
    from triage_monitor.storage.audit import WITNESS_FILE
    from triage_monitor.storage.audit_verify import verify as verified

    expected = dict(_expected(text) for text in expect or ())
    trails = verified(data_dir, witness or data_dir / WITNESS_FILE, expected)
    unknown = sorted(set(expected) - {trail.run for trail in trails})
    for trail in trails:
        older = f"; {trail.before_the_chain} older changes are not vouched for" if trail.before_the_chain else ""
        state = "BROKEN" if trail.faults else "whole "
        print(f"{state}  {trail.run}: {trail.head.number} entries, newest link {trail.head.link}{older}")
        for fault in trail.faults:
            print(f"        {fault}")
    for run in unknown:
        print(f"BROKEN  {run}: expected and not there")
    if unknown or any(trail.faults for trail in trails):
        raise typer.Exit(1)


def _expected(text: str) -> tuple[str, Head]:
    from triage_monitor.storage.audit import Head

    run, _, rest = text.partition(":")
    number, _, link = rest.partition(":")
    if re.fullmatch(r"[0-9]{1,18}", number) is None or len(link) != 64:
        raise InputError("expect", f"'{text[:100]}' is not run:number:link", column="--expect")
    return run, Head(int(number), link)
