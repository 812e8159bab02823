"""Where the demo draws: a live panel on a terminal, one line now and then where there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live

from triage_monitor.cli.demo_view import RunView, draw, number

LINE_SECONDS = 15.0


class Screen:
    """Draws on stderr, so that stdout holds the report alone. TRIAGE_DEMO_SVG names a file for a last picture."""

    def __init__(self, address: str, started: float) -> None:
        self._address = address
        self._started = started
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._said = 0.0
        self._views: Sequence[RunView] = ()

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
        picture = os.environ.get("TRIAGE_DEMO_SVG")
        if picture and self._views:
            console = Console(record=True, width=130, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
            console.print(draw(self._views, self._address, time.monotonic() - self._started))
            console.save_svg(picture, title="triage-monitor demo")
            console.file.close()

    def show(self, views: Sequence[RunView]) -> None:
        self._views = views
        now = time.monotonic()
        if self._console.is_terminal:
            self._live.update(draw(views, self._address, now - self._started), refresh=True)
        elif now - self._said >= LINE_SECONDS:
            self._said = now
            parts = [
                f"{view.name} {view.warmup or f'{view.step + 1}/{view.updates}'} reward {number(view.reward)} "
                f"{view.detail.get('stage', '-')}"
                for view in views
                if view.warmup or view.step >= 0
            ]
            self._console.print(f"{now - self._started:.0f} s: " + "; ".join(parts), highlight=False, soft_wrap=True)
