"""Experiment trackers that a `Monitor` can mirror indicators into: who they are and how each is spoken to.

    mirror="tensorboard:runs/a"     a directory of event files (default: runs/RUN-triage)
    mirror="mlflow:RUN_ID"          a run of MLflow (default: the active one, else one of its own)
    mirror="wandb:PROJECT"          a W&B run of its own (default: in the active run's project, else triage-monitor)
    mirror="trackio:PROJECT"        a trackio run of its own
    mirror=writer | run | function  a SummaryWriter, an mlflow, W&B or trackio run, or `function(step, values)`

Every tracker gets flat names (`triage/window/rho_asym`) to finite numbers, an update at a time, in the mirror's own
thread, and texts where it can show some. A live W&B run keeps its step axis: values go into the row that the trainer
logs next, one update a row, over `triage/step`; so the last ones stay out when the trainer logs no more. Nothing is
imported unless it is asked for; what is not installed is a ConfigError that names the extra. Left out: images, tables,
and whatever a tracker does with its own network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from triage_monitor.errors import ConfigError
from triage_monitor.trainer.tracker_process import OwnWandb, needs_wandb

PREFIX = "triage/"
STEP = f"{PREFIX}step"
KINDS = ("tensorboard", "mlflow", "wandb", "trackio")
Texts = Mapping[str, str]
Values = Mapping[str, float]


class Tracker(Protocol):
    """Used by one thread. `open` and `write` may raise anything and may be called again."""

    name: str

    def open(self) -> None: ...

    def is_ready(self) -> bool:
        """Whether the next update can be taken now."""
        ...

    def write(self, step: int, at: float, values: Values, texts: Texts) -> None:
        """`at`: Unix seconds at which the update was closed."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """`writer`: the caller's own, which stays open; None makes one for `directory`, without torch."""

    name = "tensorboard"

    def __init__(self, directory: str, writer: Any = None) -> None:
        self._directory = directory
        self._writer = writer
        self._is_own = writer is None
        if self._is_own:
            self._make = _event_files()

    def open(self) -> None:
        if self._writer is None:
            self._writer = self._make(self._directory)

    def is_ready(self) -> bool:
        return True

    def write(self, step: int, at: float, values: Values, texts: Texts) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        if hasattr(self._writer, "add_text"):
            for name, text in texts.items():
                self._writer.add_text(name, text, step)
        self._writer.flush()

    def close(self) -> None:
        if self._is_own and self._writer is not None:
            self._writer.close()


class Mlflow:
    """By run id, so that neither the trainer's active run nor its thread matters."""

    name = "mlflow"

    def __init__(self, run: str, run_id: str | None) -> None:
        self._mlflow = _module("mlflow", "mlflow")
        active = self._mlflow.active_run()  # of the caller's thread
        self._run = run
        self._run_id = run_id or (None if active is None else active.info.run_id) or os.environ.get("MLFLOW_RUN_ID")
        self._is_own = self._run_id is None
        self._client: Any = None

    def open(self) -> None:
        self._client = self._client or self._mlflow.MlflowClient()
        if self._run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            made = self._client.create_run(experiment, run_name=f"{self._run}-triage", tags={"triage.run": self._run})
            self._run_id = made.info.run_id

    def is_ready(self) -> bool:
        return True

    def write(self, step: int, at: float, values: Values, texts: Texts) -> None:
        entities = self._mlflow.entities
        metrics = [entities.Metric(name, value, int(at * 1000), step) for name, value in values.items()]
        tags = [entities.RunTag(name.replace("/", "."), text[:5000]) for name, text in texts.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags, synchronous=True)

    def close(self) -> None:
        if self._is_own and self._run_id is not None:
            self._client.set_terminated(self._run_id)


class LiveWandb:
    """The trainer's own run, which is not finished here. (A run beside it: `tracker_process`.)"""

    name = "wandb"

    def __init__(self, run: Any) -> None:
        self._run = run
        self._row: int | None = None  # of the trainer's, that holds what was written last

    def open(self) -> None:
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric(f"{PREFIX}*", step_metric=STEP)

    def is_ready(self) -> bool:
        return self._row is None or self._run.step > self._row

    def write(self, step: int, at: float, values: Values, texts: Texts) -> None:
        self._run.log({STEP: step, **values, **texts}, commit=False)
        self._row = self._run.step

    def close(self) -> None:
        """It is the trainer's."""


class Trackio:
    """Every log of a trackio run is a row with a step of its own, so a live run's axis is not touched either."""

    name = "trackio"

    def __init__(self, run: str, project: str | None, settings: Mapping[str, str], live: Any = None) -> None:
        self._trackio = _module("trackio", "trackio") if live is None else None
        self._run = run
        self._project = project or "triage-monitor"
        self._settings = dict(settings)
        self._into = live

    def open(self) -> None:
        if self._into is None and self._trackio is not None:
            self._into = self._trackio.init(
                project=self._project,
                name=f"{self._run}-triage",
                config=self._settings,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def is_ready(self) -> bool:
        return True

    def write(self, step: int, at: float, values: Values, texts: Texts) -> None:
        self._into.log({**values, **texts}, step=step)

    def close(self) -> None:
        if self._trackio is not None and self._into is not None:
            self._into.finish()


class Told:
    """A function of the caller's, for any other tracker."""

    name = "function"

    def __init__(self, function: Callable[[int, dict[str, float]], Any]) -> None:
        self._function = function

    def open(self) -> None:
        """Nothing is held."""

    def is_ready(self) -> bool:
        return True

    def write(self, step: int, at: float, values: Values, texts: Texts) -> None:
        self._function(step, dict(values))

    def close(self) -> None:
        """Nothing is held."""


def trackers_of(mirror: Any, run: str, settings: Mapping[str, str]) -> tuple[Tracker, ...]:
    """One for each that `mirror` names. Raises ConfigError for what is unknown or not installed."""
    if mirror is None:
        return ()
    if isinstance(mirror, list | tuple):
        return tuple(tracker for item in mirror for tracker in trackers_of(item, run, settings))
    return (_named(mirror, run, settings) if isinstance(mirror, str) else _living(mirror, run, settings),)


def _named(text: str, run: str, settings: Mapping[str, str]) -> Tracker:
    kind, _, where = text.partition(":")
    if kind == "tensorboard":
        return TensorBoard(where or str(Path("runs") / f"{run}-triage"))
    if kind == "mlflow":
        return Mlflow(run, where or None)
    if kind == "wandb":
        if (lacking := needs_wandb()) is not None:
            raise ConfigError(lacking)
        return OwnWandb(run, where or None, settings)
    if kind == "trackio":
        return Trackio(run, where or None, settings)
    raise ConfigError(f"mirror {text[:60]!r} must begin with one of {', '.join(KINDS)}, as in 'tensorboard:runs/a'")


def _living(thing: Any, run: str, settings: Mapping[str, str]) -> Tracker:
    home = type(thing).__module__.partition(".")[0]
    if isinstance(thing, type | ModuleType):
        raise ConfigError(f"mirror must be a live writer, run or function; {thing.__name__} is a class or module")
    if hasattr(thing, "add_scalar"):
        return TensorBoard("", thing)
    if home == "mlflow" and hasattr(thing, "info"):
        return Mlflow(run, thing.info.run_id)
    if hasattr(thing, "define_metric") and hasattr(thing, "log"):
        return LiveWandb(thing)
    if home == "trackio" and hasattr(thing, "log"):
        return Trackio(run, None, settings, thing)
    if callable(thing):
        return Told(thing)
    kinds = ", ".join(KINDS)
    raise ConfigError(f"mirror must name one of {kinds}, or be a writer, run or function; got {type(thing).__name__}")


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"mirror='{extra}' needs a package that is not installed ({error}): pip install 'triage-monitor[{extra}]'"
        ) from error


def _event_files() -> Callable[[str], Any]:
    """TensorBoard's own writer, or tensorboardX' where only that is installed."""
    with suppress(ImportError):
        writer: Callable[[str], Any] = import_module("tensorboardX").SummaryWriter
        return writer
    own: Callable[[str], Any] = _module("tensorboard.summary", "tensorboard").Writer
    return own
