"""The plain text page of `/metrics`, written from cached parts: 50 runs are 15,000 samples, and few runs change
between two scrapes.

What a run contributes is rendered once for each of its snapshots; what belongs to the process is left to
prometheus_client. Byte for byte it is what `generate_latest` gives for the collector (a test compares them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from triage_monitor.service.exposition import SidecarCollector, run_families
from triage_monitor.service.live import Snapshot

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
Parts = dict[str, tuple[str, str]]  # family -> its head lines, its sample lines


class TextPage:
    """Threads may render at the same time."""

    def __init__(self, collector: SidecarCollector) -> None:
        self._collector = collector
        self._of_process = _OfProcess(collector)
        self._cache: dict[str, tuple[Snapshot, int, Parts]] = {}

    def render(self) -> bytes:
        heads: dict[str, str] = {}
        samples: dict[str, list[str]] = {}
        used: dict[str, tuple[Snapshot, int, Parts]] = {}
        for snapshot, open_updates in self._collector.runs():
            known = self._cache.get(snapshot.run)
            if known is None or known[0] is not snapshot or known[1] != open_updates:
                known = (snapshot, open_updates, _parts(run_families(snapshot, open_updates)))
            used[snapshot.run] = known
            for family, (head, lines) in known[2].items():
                heads.setdefault(family, head)
                samples.setdefault(family, []).append(lines)
        self._cache = used
        text = "".join(head + "".join(samples[family]) for family, head in heads.items())
        return text.encode() + generate_latest(self._of_process)


class SharedPage:
    """One page is made at a time, and those who ask meanwhile share the next: a flood of scrapes must not take the
    interpreter from all else. Nobody gets a page that was begun before they asked."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[bytes] | None = None

    async def made(self) -> bytes:
        if self._next is None:
            self._next = asyncio.create_task(self._make())
        return await asyncio.shield(self._next)

    async def _make(self) -> bytes:
        async with self._turn:
            self._next = None
            return await asyncio.to_thread(self._render)


class _OfProcess(Collector):
    def __init__(self, collector: SidecarCollector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        return self._collector.of_process()


def _parts(families: list[Metric]) -> Parts:
    parts: Parts = {}
    texts: dict[tuple[tuple[str, str], ...], str] = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        head = f"# HELP {name} {text}\n# TYPE {name} {family.type}\n"
        parts[family.name] = (head, "".join([_line(sample, texts) for sample in family.samples]))
    return parts


def _line(sample: Sample, texts: dict[tuple[tuple[str, str], ...], str]) -> str:
    """One sample; `texts` remembers label sets, of which a run has few."""
    key = tuple(sample.labels.items())
    labels = texts.get(key)
    if labels is None:
        labels = texts[key] = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(key))
    value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]  # prometheus_client leaves it unannotated
    return f"{sample.name}{{{labels}}} {value}\n"
