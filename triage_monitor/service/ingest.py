"""Routes that take updates in: one shard of one update, and the start of an attempt.

    address -> room in the budget -> body -> digest known? -> decode and summarise (worker thread) -> store -> close

Every refusal happens before anything is kept. Health and metrics stay responsive: decoding and the kernel run in
`workers` threads without the interpreter lock, and only as many bodies are inside as the budget allows.
"""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from triage_monitor.errors import ConflictError, StoreFull, TriageError
from triage_monitor.service import attempts
from triage_monitor.service.access import caller_of
from triage_monitor.service.admission import repeat
from triage_monitor.service.arrivals import Admission
from triage_monitor.service.body import ByteBudget, Share, json_body, read_body, read_model
from triage_monitor.service.digest import PIECE_BYTES, RunningDigest
from triage_monitor.service.halves import admit as admit_half
from triage_monitor.service.halves import read_half
from triage_monitor.service.intake import MEDIA_TYPES, Address, Reading, read_shard
from triage_monitor.service.names import MAX_STEP, Attempt, Digits, Run, Step, checked_run
from triage_monitor.service.problems import Problem, problem_of
from triage_monitor.service.retention import Retention
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.wholes import admit as admit_whole
from triage_monitor.storage.fence import origin_json
from triage_monitor.storage.records import HalfRow, ShardRow
from triage_monitor.summary.rows import STREAM_MIME, UpdateRows, encode_arrays, inflated_bytes
from triage_monitor.summary.rows_halves import SIDES

DROPPED_HEADER = "triage-client-dropped"
MAX_ATTEMPT_JUMP = 1000
_DROPS = re.compile(r"([a-z0-9_-]{1,64})=(\d{1,15})")
MAX_DROP_REASONS = 32
_BINARY = {"schema": {"type": "string", "format": "binary"}}


class AttemptBody(BaseModel):
    """`launch_id` makes the call idempotent: every rank of one launch gets the same attempt."""

    model_config = ConfigDict(extra="forbid")
    from_step: int = Field(default=0, ge=0, le=MAX_STEP)
    launch_id: str | None = Field(default=None, min_length=1, max_length=256)


class Ingest:
    """Owns the worker threads and the budget of one application."""

    def __init__(self, sidecar: Sidecar, retention: Retention | None) -> None:
        self._sidecar = sidecar
        self._settings = sidecar.settings.ingest
        self._retention = retention
        if retention is not None:
            sidecar.probes.append(retention.probe)
        self._workers = ThreadPoolExecutor(self._settings.workers, thread_name_prefix="ingest")
        # Jobs there wait for no other job, so a worker may wait for one of them.
        self._beside = ThreadPoolExecutor(2 * self._settings.workers, thread_name_prefix="ingest-beside")
        self.budget = ByteBudget(self._settings.max_inflight_bytes, self._settings.max_waiting)

    def warm_up(self) -> None:
        """Reads a shard of gaps, so that the first update waits for nothing to be compiled or imported; one of
        log-probs in the background. Blocking."""
        self._rehearse("gap")
        pair = ("learner_logprobs", "sampler_logprobs")
        threading.Thread(target=self._rehearse, args=pair, name="compile", daemon=True).start()

    def _rehearse(self, *columns: str) -> None:
        arrays: dict[str, Any] = dict.fromkeys(columns, np.full(1, -1.0, np.float32))
        body = encode_arrays(**arrays, advantages=np.ones(1), offsets=np.array([0, 1]))
        spec = self._sidecar.settings.summary
        read_shard(Address("rehearsal", 0, 0, 1), STREAM_MIME, memoryview(body), spec=spec, max_tokens=1)

    def close(self) -> None:
        self._workers.shutdown()
        self._beside.shutdown()

    async def take(self, request: Request, address: Address, side: str | None = None) -> tuple[Admission, int]:
        """One shard, from its first byte to its durable place; counts what it took or why it did not."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            media = _media_type(request)
            with self.budget.request() as share, RunningDigest(self._workers, media) as digest:
                body = await read_body(
                    request,
                    share,
                    max_bytes=self._settings.max_body_bytes,
                    stall_seconds=self._settings.stall_seconds,
                    total_seconds=self._settings.body_seconds,
                    seen=digest.seen,
                )
                admission = await self._admitted(address, side, media, body, digest, share)
        except TriageError as error:
            # Under no name: its traceback holds this frame, and that the body, until Python looks for cycles.
            raise self._refused(problem_of(error)) from error
        except Problem as problem:
            self._refused(problem)
            raise
        self._sidecar.tally.accept(len(body), loop.time() - started, self._sidecar.now())
        return admission, len(body)

    def _refused(self, problem: Problem) -> Problem:
        self._sidecar.tally.reject(problem.reason, self._sidecar.now())
        return problem

    async def _admitted(
        self,
        address: Address,
        side: str | None,
        media: str,
        body: memoryview,
        digest: RunningDigest,
        share: Share,
    ) -> Admission:
        loop = asyncio.get_running_loop()
        hashing = asyncio.wrap_future(digest.text(body))
        live = await self._sidecar.peek(address.run)
        if address.attempt is None:
            address = replace(address, attempt=0 if live is None else live.attempt)
        _check_attempt(address, 0 if live is None else live.attempt)
        known = None
        if live is not None and not (side is None and live.awaits(address.place, address.shard)):
            known = await asyncio.to_thread(self._known, address, side)
        if known is not None and live is not None:
            shard = "/".join(map(str, known.key))
            refusal = f"shard {shard} was sent before with other content"
            if known.digest == await hashing:
                if known.shards == address.shards:
                    return await repeat(self._sidecar, known)
                refusal = f"shard {shard} was sent before as one of {known.shards} shards, not {address.shards}"
            live.counters["conflicting_shards"] += 1
            raise ConflictError(refusal)
        if media == STREAM_MIME:
            more = partial(inflated_bytes, body, max_tokens=self._settings.max_tokens)
            self._make_room(share, await loop.run_in_executor(self._workers, more))
        if side is not None:
            limit = self._settings.max_tokens
            half = await loop.run_in_executor(
                self._workers, lambda: read_half(address, side, media, body, max_tokens=limit)
            )
            return await admit_half(self._sidecar, replace(half, row=replace(half.row, digest=await hashing)))
        crc = await asyncio.wrap_future(digest.content_crc(body)) if len(body) > PIECE_BYTES else None
        reading = await loop.run_in_executor(self._workers, self._read, address, media, body, crc)
        arrival = replace(reading.arrival, row=replace(reading.arrival.row, digest=await hashing))
        keep = None
        if self._retention is not None and reading.rows is not None:
            keep = partial(self._kept, self._retention, address, reading.rows)
        return await admit_whole(self._sidecar, arrival, keep)

    async def _kept(self, retention: Retention, address: Address, rows: UpdateRows) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._workers, retention.keep, address, rows)
        except StoreFull as error:
            self._sidecar.last_write_failed = str(error)
            raise

    def _known(self, address: Address, side: str | None) -> ShardRow | HalfRow | None:
        if side is None:
            return self._sidecar.store.get(ShardRow, *address.key)
        return self._sidecar.store.get(HalfRow, *address.key[:-1], side, address.shard)

    def _make_room(self, share: Share, more: int) -> None:
        """What a compressed body expands to is held like the body itself."""
        size, most = share.held_bytes + more, self.budget.max_bytes
        if size > most:
            raise Problem(413, "too_large", f"the stream expands to {more} bytes; with its body {most} are taken")
        share.grow(size)

    def _read(self, address: Address, media: str, body: memoryview, content_crc: int | None) -> Reading:
        return read_shard(
            address,
            media,
            body,
            spec=self._sidecar.settings.summary,
            max_tokens=self._settings.max_tokens,
            content_crc=content_crc,
            beside=self._beside,
        )


def routes(ingest: Ingest, sidecar: Sidecar) -> APIRouter:
    router = APIRouter(prefix="/v1/runs/{run}", tags=["ingest"])

    @router.put(
        "/updates/{step}/shards/{shard}",
        status_code=201,
        responses={200: {}, 400: {}, 408: {}, 409: {}, 413: {}, 415: {}, 422: {}, 503: {}, 507: {}},
        openapi_extra={"requestBody": {"required": True, "content": dict.fromkeys(MEDIA_TYPES, _BINARY)}},
    )
    async def put_shard(
        request: Request,
        run: Run,
        step: Step,
        shard: Annotated[int, Path(ge=0), Digits],
        shards: Annotated[int, Query(ge=1), Digits] = 1,
        attempt: Attempt = None,
        side: str | None = None,
    ) -> JSONResponse:
        """One shard of one update: an Arrow IPC stream, one row per response, or an encoded summary. With `side`, one
        shard of what the samplers (response_id, sampler_logprobs) or the learners report on their own."""
        address = _address(sidecar, run, step, shard, shards, attempt, side)
        admission, body_bytes = await ingest.take(request, address, side)
        _note_drops(sidecar, address, request.headers.get(DROPPED_HEADER))
        answer: dict[str, Any] = {
            "status": "duplicate" if admission.duplicate else "new",
            "run": run,
            "step": step,
            "attempt": admission.attempt,
            "shard": shard,
            "shards": admission.shards,
            "shards_in": admission.shards_in,
            "update": admission.update,
            "bytes": body_bytes,
            "params_version": admission.params_version,
            **({} if side is None else {"side": side}),
            **origin_json(sidecar.store.fence),
        }
        return JSONResponse(answer, 200 if admission.duplicate else 201)

    @router.post("/attempts", status_code=201, openapi_extra=json_body(AttemptBody), responses={200: {}})
    async def begin_attempt(request: Request, run: Run) -> JSONResponse:
        """A trainer that starts or resumes asks once; its later shards carry the attempt it got."""
        checked_run(run)
        body = await read_model(request, AttemptBody)
        row, is_new = await attempts.begin(sidecar, run, body.from_step, body.launch_id, caller_of(request).name)
        answer = {"attempt": row.attempt, "from_step": row.from_step, "params_version": sidecar.runs[run].version}
        answer |= origin_json(sidecar.store.fence)
        return JSONResponse(answer, 201 if is_new else 200)

    return router


def _address(
    sidecar: Sidecar, run: str, step: int, shard: int, shards: int, attempt: int | None, side: str | None
) -> Address:
    refusal = None
    if shards > sidecar.settings.ingest.max_shards:
        refusal = Problem(
            422, "shards", f"{shards} shards; at most {sidecar.settings.ingest.max_shards} are taken", column="shards"
        )
    elif shard >= shards:
        refusal = Problem(422, "shard", f"shard {shard} is out of range for {shards} shards", column="shard")
    elif side not in (None, *SIDES):
        refusal = Problem(422, "side", f"side '{(side or '')[:40]}' is neither of {' and '.join(SIDES)}", column="side")
    if refusal is not None:
        sidecar.tally.reject(refusal.reason, sidecar.now())
        raise refusal
    return Address(checked_run(run), step, shard, shards, attempt)


def _check_attempt(address: Address, current: int) -> None:
    """Issued attempts are counted by one, so a far one is a slip, and would use up the numbers that are left. A sidecar
    that lost its store, or gets the end of a recording, meets attempts it never issued: those are taken."""
    if (address.attempt or 0) > current + MAX_ATTEMPT_JUMP:
        detail = f"attempt {address.attempt} was never issued; the run is at {current} and {current + 1} is the next"
        raise Problem(409, "attempt", detail, column="attempt", expected=current + 1)


def _media_type(request: Request) -> str:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in MEDIA_TYPES:
        raise Problem(415, "media_type", f"Content-Type is '{media[:100]}'; taken are {' and '.join(MEDIA_TYPES)}")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(415, "content_encoding", "bodies are taken without Content-Encoding; Arrow buffers may be zstd")
    return media


def _note_drops(sidecar: Sidecar, address: Address, text: str | None) -> None:
    """What this trainer rank says it had to drop, by reason; totals, replaced by every report."""
    live = sidecar.runs.get(address.run)
    if text is not None and live is not None:
        found = [(reason, int(count)) for reason, count in _DROPS.findall(text)][:MAX_DROP_REASONS]
        live.client_drops[address.shard] = dict(found)
        live.snapshot = replace(live.snapshot, client_drops=live.dropped_by_clients())
