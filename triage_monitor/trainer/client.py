"""`Monitor`: what a trainer holds. Wrong configuration raises when it is built; after that nothing raises or waits.

    monitor = Monitor("http://127.0.0.1:8750", run="qwen-nvfp4")
    for step in range(steps):
        params = monitor.apply(step)                      # the parameter set of this update
        ...
        monitor.submit(step=step, gap=gap, advantages=advantages, offsets=offsets)

`submit` copies the arrays and returns; everything else happens in daemon threads (courier.py). The queue is bounded;
what does not fit pushes the oldest waiting update out, and every drop is counted by reason in `stats`. One rank sends
one shard an update: join micro-batches first. A run that resumes builds a new Monitor, with a new launch id.

Processes. A forked child starts with an empty queue, fresh counters and no threads. A Monitor cannot be pickled: build
one in each spawned process. At exit every open Monitor flushes for at most `exit_flush_seconds`, in processes that
multiprocessing started too; nothing is flushed after `os._exit` or a signal that kills.
"""

from __future__ import annotations

import atexit
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing import parent_process, util
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NoReturn

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.trainer.arrays import hold_objective
from triage_monitor.trainer.courier import Courier
from triage_monitor.trainer.form import checked_form
from triage_monitor.trainer.lease import CHANGE_LIMIT, Limits, ParameterDesk
from triage_monitor.trainer.mirror import ANSWER_BYTES, Mirror, snapshots
from triage_monitor.trainer.outbox import Outbox
from triage_monitor.trainer.route import at_least_one, checked_attempt, checked_route, not_negative, safe_text, seconds
from triage_monitor.trainer.tls import tls_of, token_of
from triage_monitor.trainer.trackers import trackers_of
from triage_monitor.trainer.transport import ORDINARY_ANSWER, Link, Timeouts, checked_url

_CLOSE_SECONDS = 10.0
_LONGEST_CLOSE_SECONDS = 1e9  # a lock takes no infinite timeout
_ARRAYS = (
    *("gap", "learner_logprobs", "sampler_logprobs", "advantages", "offsets", "mask", "missing"),
    *("rewards", "grad_norm", "groups", "policy_versions", "response_ids", "engines", "padding_rows"),
)


class Monitor:
    """A trainer rank's connection to the sidecar.

    url, run: where, and under which name. shards, shard: how many ranks report an update, and which one this is.
    side: "sampler" or "learner" where the two kinds of worker report on their own, each with its own `shards`; the
        monitor joins their rows by `response_ids`. Both sides need one `launch_id` (or `attempt`).
    attempt: the number of this launch, if known. Without it the first thing sent asks the monitor (POST attempts with
        `launch_id`); every rank that gives the same launch id gets the same attempt. `launch_id` defaults to a
        random one for a single shard and to the launcher's own for several (torchrun's or Slurm's ids and restart
        count); `distributed.shared_launch_id` makes a fresh one for all ranks.
    mode: "raw" sends the arrays, "summary" sends a fixed-size summary made here under `spec`: on the training device,
        without waiting for it, when the tensors lie there (edge.py), else in the client's thread; `reduce_on` "device"
        or "host" says which. `raw_every`: every so many steps the arrays themselves instead, for heat map and replay.
    settings: the sampling settings (temperature, top_p, top_k, logprobs_mode, learner, precision).
    safe_default: the set used before the monitor was heard, and when its lease runs out.
    limits: the trainer's own ranges, `{"gate.w_min": (0.3, 1.0), "tis.enabled": [False]}`; a set outside is refused.
    change_limit: (changes, updates); a set that would be one change more is refused, unless it pauses, stops or goes
        back to the safe default.
    token, ssl_context: the sidecar's bearer token (scope `ingest`) and TLS; without them TRIAGE_TOKEN, TRIAGE_CA_FILE,
        TRIAGE_CERT_FILE and TRIAGE_KEY_FILE of the environment (trainer/tls.py). No message or repr shows the token.
    queue_updates, max_queue_bytes: bounds of what waits; the update being sent comes on top.
    mirror: where the monitor's indicators go besides: "tensorboard:DIR", "mlflow", "wandb:PROJECT", "trackio", a live
        writer or run, `function(step, values)`, or a list of them (trainer/trackers.py). Shard 0 only, in threads of
        their own; needs the token scope `read`.
    flight_url: `grpc://host:port` (or grpc+tls) of the sidecar's `--flight-port`: raw updates go there, the rest by
        HTTP (trainer/flight.py). It was no faster than HTTP for small updates, a little for large ones: `bench flight`.
    connect_timeout, timeout, call_timeout: seconds to connect, of silence, and for one whole call.
    Raises ConfigError. An unreachable server is no error.
    """

    def __init__(
        self,
        url: str,
        *,
        run: str,
        shards: int = 1,
        shard: int = 0,
        side: Literal["sampler", "learner"] | None = None,
        attempt: int | None = None,
        launch_id: str | None = None,
        mode: Literal["raw", "summary"] = "raw",
        reduce_on: Literal["auto", "device", "host"] = "auto",
        raw_every: int | None = None,
        spec: SummarySpec = DEFAULT_SPEC,
        settings: Mapping[str, object] | None = None,
        safe_default: TriageParams | None = None,
        limits: Limits | None = None,
        change_limit: tuple[int, int] = CHANGE_LIMIT,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        queue_updates: int = 64,
        max_queue_bytes: int = 256 * 2**20,
        connect_timeout: float = 2.0,
        timeout: float = 30.0,
        call_timeout: float = 60.0,
        poll_seconds: float = 20.0,
        pause_silence_seconds: float = 600.0,
        exit_flush_seconds: float = 3.0,
        compression: Literal["zstd", "lz4"] | None = None,
        mirror: Any = None,
        flight_url: str | None = None,
    ) -> None:
        address = checked_url(url)
        timeouts = Timeouts(connect_timeout, timeout, call_timeout)
        secret = token_of(token, os.environ)
        if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
            raise ConfigError(f"ssl_context must be an ssl.SSLContext, got {type(ssl_context).__name__}")
        if seconds("poll_seconds", poll_seconds, 60.0) == 0:
            raise ConfigError("poll_seconds must be above 0")
        context = ssl_context if ssl_context is not None or address.startswith("http:") else tls_of(os.environ)
        form = checked_form(mode, reduce_on, raw_every, spec, compression, side)
        if side is not None and attempt is None and launch_id is None:
            raise ConfigError(
                "samplers and learners must report one attempt: give both sides one launch_id= or attempt="
            )
        route = checked_route(run, shards, shard, launch_id, form, settings)
        self._outbox = Outbox(
            at_least_one("queue_updates", queue_updates), at_least_one("max_queue_bytes", max_queue_bytes)
        )
        self._desk = ParameterDesk(
            _checked_default(safe_default),
            limits,
            seconds("pause_silence_seconds", pause_silence_seconds, 1e9),
            change_limit,
        )

        def connect(answer_bytes: int = ORDINARY_ANSWER) -> Link:
            return Link(address, secret, timeouts, context, answer_bytes)

        route.rehearse()
        connect().close()  # what TLS or the headers have against the configuration shows here
        self._form = form
        flight = None
        if flight_url is not None:
            # By name: only who asks for it loads gRPC.
            flight = import_module("triage_monitor.trainer.flight").FlightLink(flight_url, secret, timeouts, os.environ)
        self._courier = Courier(route, self._outbox, self._desk, connect, float(poll_seconds), flight)
        self._courier.attempt = None if attempt is None else checked_attempt(attempt)
        self._mirrors = tuple(
            Mirror(tracker, route.base, lambda: connect(ANSWER_BYTES), lambda: self._courier.attempt)
            for tracker in trackers_of(mirror if shard == 0 else None, run, route.settings)
        )
        self._exit_flush_seconds = seconds("exit_flush_seconds", exit_flush_seconds, 300.0)
        sided = "" if side is None else f", side={side!r}"
        self._described = f"Monitor({address!r}, run={run!r}, shards={shards}, shard={shard}{sided})"
        _open.add(self)
        if shard == 0 and side != "sampler":
            self._begin(self._courier.ensure_polling)

    def submit(
        self,
        *,
        step: int,
        objective: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **arrays: Any,
    ) -> bool:
        """Queues one update of this shard; True when it was taken. Never raises, never waits for the network.

        Takes the arrays of `summarize`: `gap` or both of `learner_logprobs` and `sampler_logprobs`, `advantages`,
        and `offsets`, `mask`, `missing`, `rewards`, `grad_norm` (one number), `groups`, `policy_versions`,
        `response_ids`, `engines`, `padding_rows` where there are any. Each is flat [T] (or [R]), a list of per-response
        arrays, or padded [B, T] with a [B, T] mask; numpy arrays, tensors or Python numbers. `objective`: the stats
        of the update's `TriageLoss` call, or of all its calls, for what gate and repair did. A sampler's side takes
        `response_ids`, `sampler_logprobs` and, if known, `policy_versions`, `engines`; a learner's `response_ids`,
        `learner_logprobs`, `advantages`, `mask` and what else it has. Nonsense is counted as
        `invalid`, here or when it is encoded; `stats["last_error"]` says what was wrong.
        """
        try:
            number = not_negative("step", step)
            unknown = sorted(set(arrays) - set(_ARRAYS))
            if unknown:
                raise InputError("unknown_argument", f"submit takes no {', '.join(unknown)}")
            given = {name: value for name, value in arrays.items() if value is not None}
            held = self._form.hold(number, given)
            if objective is not None:
                held["objective"] = hold_objective(objective)
            self._begin(self._courier.ensure_sending)
            is_taken = self._outbox.put(number, held)
            for one in self._mirrors if is_taken else ():
                one.expect(number, self._desk.in_force.version, self._desk.in_force.reason)
            return is_taken
        except Exception as error:  # noqa: BLE001  the promise to the trainer
            shown = f"step {safe_text(step, repr, 40)}: {type(error).__name__}: {safe_text(error)}"
            return self._outbox.refuse("invalid", shown)

    @property
    def params(self) -> TriageParams:
        """The newest accepted set, in force or not yet; `safe_default` before there is one."""
        self._begin(self._courier.ensure_polling)
        return self._desk.newest

    def apply(self, step: int) -> TriageParams:
        """The set to use for update `step`: call once at each update boundary. Never raises, never waits.

        The newest set takes effect here and is acknowledged with this step. When nothing was heard from the monitor
        for the set's `lease_updates` steps, `safe_default` is in force until it answers again.
        """
        try:
            self._begin(self._courier.ensure_polling)
            params, acknowledgement = self._desk.decide(not_negative("step", step), monotonic())
            if acknowledgement is not None:
                self._outbox.report(acknowledgement)
                self._begin(self._courier.ensure_sending)
            return params
        except Exception as error:  # noqa: BLE001  the promise to the trainer
            self._outbox.note_error(f"apply: {type(error).__name__}: {safe_text(error)}")
            return self._desk.in_force

    @property
    def attempt(self) -> int | None:
        """This launch's attempt, None until the monitor has said it."""
        return self._courier.attempt

    @property
    def stats(self) -> dict[str, Any]:
        """A snapshot: submitted, accepted, sent (calls made), acknowledged, duplicates, retries, dropped {reason:
        count}, last_error, queue_depth, queue_bytes, params_version, params_applied_version, params_refused,
        params_stale, params_fenced (sets of other monitors than the one obeyed), params_epoch (of that one),
        lease_expired, lease_expiries, attempt, mirrors {tracker: {written, newest_step, waiting, given_up,
        last_error}}, where a second one of a kind is called `function_2`."""
        desk = self._desk
        return {
            **self._outbox.snapshot(),
            "params_version": desk.newest.version,
            "params_applied_version": desk.in_force.version,
            "params_refused": desk.refused,
            "params_stale": desk.stale,
            "params_fenced": desk.fence.refused,
            "params_epoch": desk.fence.obeyed.epoch,
            "lease_expired": desk.expired,
            "lease_expiries": desk.expiries,
            "attempt": self._courier.attempt,
            "mirrors": snapshots(self._mirrors),
        }

    def close(self, timeout: float = _CLOSE_SECONDS) -> bool:
        """Flushes for at most `timeout` seconds and stops. True when every update accepted was acknowledged, False
        when one was dropped for any reason; what is still left is counted as dropped (`closed`). A closed monitor
        accepts nothing and keeps its last parameters. Never raises: a timeout that is no number counts as 10 seconds,
        a negative one as 0."""
        is_complete = self._finish(monotonic() + _usable_timeout(timeout))
        _open.discard(self)
        return is_complete

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(_CLOSE_SECONDS if error is None else self._exit_flush_seconds)

    def __repr__(self) -> str:
        return self._described

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Monitor owns threads and sockets and cannot be pickled; build one in each process")

    def _finish(self, deadline: float) -> bool:
        is_complete = self._courier.finish(deadline)
        for one in self._mirrors:
            one.begin_closing()
        for one in self._mirrors:
            one.finish(deadline)
        return is_complete

    def _begin(self, ensure: Callable[[], None]) -> None:
        _flush_in_children()
        ensure()

    def _start_afresh_in_child(self) -> None:
        self._desk.renew_lock()
        self._outbox.start_afresh()
        self._courier.start_afresh()
        for one in self._mirrors:
            one.leave_in_child()
        self._mirrors = ()


def _usable_timeout(timeout: Any) -> float:
    try:
        seconds = float(timeout)
    except OverflowError:  # an integer beyond every float
        return _LONGEST_CLOSE_SECONDS if timeout > 0 else 0.0
    except Exception:  # noqa: BLE001  the promise to the trainer
        return _CLOSE_SECONDS
    return min(max(0.0, seconds), _LONGEST_CLOSE_SECONDS)


def _checked_default(safe_default: TriageParams | None) -> TriageParams:
    params = TriageParams() if safe_default is None else safe_default
    if not isinstance(params, TriageParams):
        raise ConfigError(f"safe_default must be a TriageParams, got {type(params).__name__}")
    try:
        params.validate()
    except InputError as error:
        raise ConfigError(f"safe_default: {error}") from error
    return params


_open: set[Monitor] = set()
_flushes_children_of = 0  # the process for which multiprocessing was told


def _flush_at_exit() -> None:
    started = monotonic()
    monitors = list(_open)
    _open.clear()
    for monitor in monitors:
        monitor._outbox.close()
    for monitor in monitors:
        monitor._finish(started + monitor._exit_flush_seconds)


def _flush_in_children() -> None:
    """Processes of multiprocessing end by os._exit, without atexit: their own list of finalizers is used."""
    global _flushes_children_of
    if parent_process() is not None and _flushes_children_of != os.getpid():
        _flushes_children_of = os.getpid()
        util.Finalize(None, _flush_at_exit, exitpriority=100)


def _after_fork_in_child() -> None:
    for monitor in list(_open):
        monitor._start_afresh_in_child()


atexit.register(_flush_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
