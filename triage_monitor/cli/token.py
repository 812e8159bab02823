"""`triage-monitor token`: makes, lists and revokes the bearer tokens of a sidecar.

The file is the one that `auth.tokens_file` names. A running sidecar takes a change over within a second, so rotating is
`add` under a new name, handing the new token out, and `revoke` of the old one. A secret is printed once, to stdout and
nowhere else; the file holds its hash.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from triage_monitor.errors import InputError

FILE = Path("triage-tokens.json")
File = Annotated[Path, typer.Option("--file", envvar="TRIAGE_AUTH__TOKENS_FILE", help="The token file.")]
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
EXAMPLE = "Example: triage-monitor token add trainer-a --scope ingest"


def register(app: typer.Typer) -> None:
    token = typer.Typer(no_args_is_help=True, help="Make, list and revoke the bearer tokens of a sidecar.")
    token.command(epilog=EXAMPLE)(add)
    token.command("list", epilog="Example: triage-monitor token list --file triage-tokens.json")(list_)
    token.command(epilog="Example: triage-monitor token revoke trainer-a")(revoke)
    app.add_typer(token, name="token")


def add(
    name: Annotated[str, typer.Argument(help="Whose it is; stands in the audit trail.")],
    scope: Annotated[
        list[str],
        typer.Option(help="ingest (a trainer), read (people, Prometheus) or control (who may act); any number."),
    ],
    expires: Annotated[str | None, typer.Option(help="Good for 30m, 12h, 90d; without it for ever.")] = None,
    file: File = FILE,
) -> None:
    """Make a token and print it, once."""
    from triage_monitor.service.token_file import add_token
    from triage_monitor.service.tokens import Scope

    known = [item.value for item in Scope]
    for given in scope:
        if given not in known:
            raise InputError("scope", f"'{given[:40]}' is not one of {', '.join(known)}", column="--scope")
    now = time.time()
    until = None if expires is None else now + _seconds(expires)
    print(add_token(file, name, [Scope(given) for given in scope], now, until))
    print(f"triage-monitor: the token of '{name}', shown only now; {file} holds its hash", file=sys.stderr)


def list_(file: File = FILE) -> None:
    """Show names, scopes and times; nothing secret."""
    from triage_monitor.service.token_file import list_tokens

    print(f"{'name':<32} {'scopes':<20} {'made':<17} good until")
    now = time.time()
    for entry in list_tokens(file):
        scopes = ",".join(entry.to_dict()["scopes"])
        until = "-" if entry.expires_at is None else _day(entry.expires_at)
        ended = " (over)" if entry.expires_at is not None and entry.expires_at <= now else ""
        print(f"{entry.name:<32} {scopes:<20} {_day(entry.created_at):<17} {until}{ended}")


def revoke(name: Annotated[str, typer.Argument(help="Its name, as listed.")], file: File = FILE) -> None:
    """Take a token out of the file; the sidecar refuses it within a second."""
    from triage_monitor.service.token_file import revoke_token

    revoke_token(file, name)
    print(f"triage-monitor: '{name}' is revoked", file=sys.stderr)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    if found is None or int(found[1]) == 0:
        raise InputError("expires", f"'{text[:40]}' must be a number and m, h or d, like 90d", column="--expires")
    return int(found[1]) * _UNITS[found[2]]


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
