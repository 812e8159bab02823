"""`triage-monitor replay`: sends a recorded run to a server by the calls a trainer makes, in the order of its steps.

For each recorded attempt it asks the server for an attempt from that first step on, then sends every shard as an Arrow
stream and waits for the acknowledgement. Unlike a trainer it drops nothing the server cannot take at once but tries
again, until `--patience` runs out. The launch id comes from the recording: a replay that broke off can be repeated.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from triage_monitor.errors import TriageError

if TYPE_CHECKING:
    from triage_monitor.storage.recordings_order import Index
    from triage_monitor.trainer.answers import Answer
    from triage_monitor.trainer.transport import Link

SECONDS = (2.0, 10.0, 60.0)  # to connect, of silence, and for one call
EXAMPLE = "Example: triage-monitor replay recordings/run-a --to http://127.0.0.1:8750 --speed 5"


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLE)(replay)


def replay(
    paths: Annotated[list[str], typer.Argument(help="Recordings: files, directories or patterns.", show_default=False)],
    to: Annotated[str, typer.Option(help="Address of the server.", metavar="URL", show_default=False)],
    speed: Annotated[float | None, typer.Option(min=0.001, help="Updates a second; as fast as it takes them.")] = None,
    run: Annotated[str | None, typer.Option(help="Name of the run there; by default the recorded one.")] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="arrow, parquet, jsonl or a framework (nemo_rl, prime_rl, slime, miles); else told by content."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Bearer token; better by the environment.", envvar="TRIAGE_TOKEN"),
    ] = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to keep trying one call.")] = 60.0,
) -> None:
    """Send a recorded run to a server as its trainer would."""
    from rich.console import Console

    from triage_monitor.storage.recordings_order import index_updates, iter_ordered
    from triage_monitor.trainer.tls import tls_of, token_of
    from triage_monitor.trainer.transport import Link, Timeouts, checked_url

    address = checked_url(to)
    context = tls_of(os.environ) if address.startswith("https:") else None
    link = Link(address, token_of(token, {}), Timeouts(*SECONDS), context)
    with Console(stderr=True).status("reading") as status, closing(link):
        index = index_updates(paths, format=format)
        sender = Sender(link, index, run or index.run, patience)
        started = time.monotonic()
        for update in iter_ordered(index):
            if speed is not None:
                time.sleep(max(0.0, started + sender.updates / speed - time.monotonic()))
            try:
                sender.send(update.attempt, update.step, update.rows)
            except Refused as error:
                where = f"{update.path}, step {update.step}, from row {update.first_row}"
                raise Refused(f"{where}: {error}", error.status) from None
            status.update(f"sent {sender.updates} of {len(index.shards)} updates")
    print(f"{sender.run}: {sender.updates} updates, {sender.shards} shards ({sender.repeated} known before)")


class Sender:
    """The calls of one replay, and what came of them."""

    def __init__(self, link: Link, index: Index, run: str, patience: float) -> None:
        self.link = link
        self.index = index
        self.run = run
        self.base = f"/v1/runs/{quote(run, safe='')}"
        self.patience = patience
        self.shards = self.repeated = 0
        self._sent: dict[tuple[int, int], int] = {}
        self._attempts: dict[int, int] = {}

    @property
    def updates(self) -> int:
        return len(self._sent)

    def send(self, attempt: int, step: int, rows: Any) -> None:
        from triage_monitor.summary.rows import STREAM_MIME, encode_stream

        shard = self._sent.get((attempt, step), 0)
        query = {"shards": self.index.shards[attempt, step], "attempt": self._attempt(attempt)}
        answer = self._insist(
            "PUT",
            f"{self.base}/updates/{step}/shards/{shard}",
            query=query,
            content=encode_stream(rows),
            headers={"Content-Type": STREAM_MIME},
        )
        self._sent[attempt, step] = shard + 1
        self.shards += 1
        self.repeated += answer.status == 200

    def _attempt(self, recorded: int) -> int:
        if recorded not in self._attempts:
            from_step = self.index.first_steps[recorded]
            body = {"from_step": from_step, "launch_id": f"replay-{_identity(self.index)}-{recorded}"}
            answer = self._insist(
                "POST",
                f"{self.base}/attempts",
                content=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            self._attempts[recorded] = int(answer.body["attempt"])
        return self._attempts[recorded]

    def _insist(self, method: str, path: str, **call: Any) -> Answer:
        return insist(self.link, self.patience, method, path, **call)


class Refused(TriageError):
    """The server will never take a call."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def insist(link: Link, patience: float, method: str, path: str, **call: Any) -> Answer:
    """Tries one call until it is taken. Raises Refused, or TriageError when `patience` is over."""
    from triage_monitor.trainer.answers import Verdict

    until, pause = time.monotonic() + patience, 0.1
    while True:
        answer = link.call(method, path, **call)
        if answer.verdict is Verdict.OK:
            return answer
        if answer.verdict is Verdict.NEVER:
            raise Refused(f"{method} {path}: {answer.detail}", answer.status)
        if time.monotonic() + pause > until:
            raise TriageError(f"{method} {path}: {answer.detail}")
        print(f"triage-monitor: waiting: {answer.detail}", file=sys.stderr)
        time.sleep(max(pause, answer.retry_after))
        pause = min(2 * pause, 5.0)


def _identity(index: Index) -> str:
    """The same for the same files; a recording that has grown is another launch."""
    digest = blake2b(digest_size=8)
    for _, paths in index.files:
        for path in paths:
            digest.update(f"{path.resolve()}:{path.stat().st_size}\n".encode())
    return digest.hexdigest()
