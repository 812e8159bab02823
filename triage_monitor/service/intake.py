"""A shard's bytes -> its row and its summary; blocking and free of the event loop (a worker thread runs it).

Of group ids the distinct ones are kept, so that the closing can see a group that two shards share. What a large shard
shows besides its summary is read off by a second thread.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from triage_monitor.errors import InputError
from triage_monitor.service.arrivals import Arrival
from triage_monitor.service.open_update import Piece, Place
from triage_monitor.storage.records import ShardRow
from triage_monitor.summary.build import LARGE_SHARD
from triage_monitor.summary.codec import encode
from triage_monitor.summary.report import decode_report
from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME, UpdateRows, checked_settings, decode_stream
from triage_monitor.summary.rows_columns import flag_column, whole_column
from triage_monitor.summary.rows_values import SETTING_NAMES
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.symptoms import Symptoms
from triage_monitor.summary.symptoms_codec import encode_symptoms
from triage_monitor.summary.symptoms_rows import symptoms_of
from triage_monitor.summary.worst import encode_worst
from triage_monitor.summary.worst_rows import worst_of

MEDIA_TYPES = (STREAM_MIME, SUMMARY_MIME)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a shard belongs; `attempt` None means the run's current one."""

    run: str
    step: int
    shard: int
    shards: int
    attempt: int | None = None

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.run, self.attempt or 0, self.step, self.shard

    @property
    def place(self) -> Place:
        return self.attempt or 0, self.step


@dataclass(frozen=True, slots=True)
class Reading:
    """An understood body; `rows` only when it was an Arrow stream."""

    arrival: Arrival
    rows: UpdateRows | None = None


def read_shard(
    address: Address,
    media: str,
    body: memoryview,
    *,
    spec: SummarySpec,
    max_tokens: int,
    content_crc: int | None = None,
    beside: Executor | None = None,
) -> Reading:
    """The shard without its digest and time. Raises InputError naming column and row.

    `content_crc` as in `decode_stream`; with `beside`, a large shard is read off in two threads.
    """
    rows = None
    groups: bytes | None = None
    settings: dict[str, str] = {}
    symptoms: Symptoms | None = None
    worst: bytes | None = None
    if media == SUMMARY_MIME:
        summary, symptoms = decode_report(bytes(body))
        settings = {} if symptoms is None else {name: told[0] for name, told in symptoms.settings.items() if told}
        if summary.spec.fingerprint != spec.fingerprint:
            detail = f"the summary was made under {summary.spec.to_json()}, this monitor judges under {spec.to_json()}"
            raise InputError("spec_mismatch", detail)
    else:
        rows = _decoded(address, body, max_tokens, content_crc)
        showing = partial(_shown, rows, spec, address.shard)
        if beside is None or rows.tokens < LARGE_SHARD:
            summary, (symptoms, worst) = rows.summarize(spec), showing()
        else:
            shown = beside.submit(showing)
            summary = rows.summarize(spec, each=beside.map)
            symptoms, worst = shown.result()
        settings = dict(rows.settings)
        groups = b"" if rows.groups is None else np.unique(rows.groups).astype("<i8").tobytes()
    row = ShardRow(
        address.run,
        address.attempt or 0,
        address.step,
        address.shard,
        address.shards,
        "",
        0.0,
        len(body),
        encode(summary),
        groups,
        dict(settings),
    )
    encoded = None if symptoms is None else encode_symptoms(symptoms)
    return Reading(Arrival(row, Piece(summary, groups, symptoms), encoded, worst), rows)


def _shown(rows: UpdateRows, spec: SummarySpec, shard: int) -> tuple[Symptoms, bytes]:
    """What a shard shows besides its summary: symptoms, and its worst responses, encoded."""
    with np.errstate(over="ignore", invalid="ignore"):  # absurd inputs end as absent indicators
        return symptoms_of(rows), encode_worst(worst_of(rows, spec, shard=shard))


def _decoded(address: Address, body: memoryview, max_tokens: int, content_crc: int | None) -> UpdateRows:
    try:
        rows = decode_stream(body, max_tokens=max_tokens, content_crc=content_crc)
    except InputError as error:
        if error.reason != "bad_setting" or error.column is not None:
            raise
        raise InputError(error.reason, error.detail, column=_wrong_setting(body)) from None
    check_place(address, body)
    return rows


def _wrong_setting(body: memoryview) -> str | None:
    """Which setting of a sound stream is the refused one."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        metadata = reader.schema.metadata or {}
    for name in SETTING_NAMES:
        try:
            checked_settings({name: metadata.get(name.encode(), b"0").decode("utf-8", "replace")})
        except InputError:
            if name.encode() in metadata:
                return name
    return None


def check_place(address: Address, body: memoryview) -> None:
    """A `step` or `attempt` column must say what the address says; InputError naming the row. Padding is not read."""
    expected = {"step": address.step, "attempt": address.attempt or 0}
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        names = reader.schema.names
    if not expected.keys() & set(names):
        return
    wanted = [place for place, name in enumerate(names) if name in expected or name == "padding"]
    options = pa.ipc.IpcReadOptions(included_fields=wanted)
    with pa.ipc.open_stream(pa.py_buffer(body), options=options) as reader:
        table = reader.read_all()
    kept = np.arange(table.num_rows)
    if "padding" in names:
        kept = np.flatnonzero(~flag_column("padding", table["padding"]))
        for name in expected.keys() & set(names):
            whole_column(name, table[name].slice(0, 0))  # of another type: Arrow cannot take rows of every one
        table = table.take(pa.array(kept))
    for name in expected.keys() & set(names):
        try:
            values = whole_column(name, table[name])
        except InputError as error:
            raise error if error.row is None else error.at(row=int(kept[error.row])) from None
        wrong = np.flatnonzero(values != expected[name])
        if len(wrong):
            detail = f"is {values[wrong[0]]}, and the shard was sent to {name} {expected[name]}"
            raise InputError("other_place", detail, column=name, row=int(kept[wrong[0]]))
