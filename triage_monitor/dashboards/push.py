"""Uploads the dashboards to a Grafana, and a run's stage changes and actions as its annotations.

By `grafana-client`, the maintained successor of the archived `grafana-api`. Uploading again overwrites: uids are
stable. An annotation that is there already (same time, text and tags) is not made a second time, so `push` can be
repeated. Not run against a real Grafana so far: the tests speak to a small server of the same calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triage_monitor.errors import ConfigError, TriageError

RUN_UIDS = ("triage-run", "triage-research")
MESSAGE = "triage-monitor dashboards push"
TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One annotation: Unix seconds, text, tags."""

    at: float
    text: str
    tags: tuple[str, ...]


def marks(run: str, transitions: Iterable[Mapping[str, Any]], actions: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """A run's history as the service tells it (`transitions`, `actions`), oldest first."""
    of_run = ("triage", f"run:{run}")
    found = [
        Mark(item["at"], f"{run}: {item['from_stage']} to {item['to_stage']}. {item['text']}", (*of_run, "stage"))
        for item in transitions
    ]
    found += [
        Mark(
            item["at"],
            f"{run}: {item['kind']} {item['outcome']} by {item['actor']}. {item['reason']}",
            (*of_run, "action"),
        )
        for item in actions
    ]
    return sorted(found, key=lambda mark: mark.at)


class Grafana:
    """One Grafana and a service account's token. Raises TriageError when it refuses or does not answer."""

    def __init__(self, url: str, token: str) -> None:
        try:
            from grafana_client.api import GrafanaApi
            from grafana_client.client import GrafanaException
        except ModuleNotFoundError as error:
            raise ConfigError("pushing needs grafana-client: pip install 'triage-monitor[grafana]'") from error
        self._failure = GrafanaException
        self._url = url
        self._api = GrafanaApi.from_url(url, credential=token, timeout=TIMEOUT_SECONDS)

    def upload(self, board: Mapping[str, Any], folder_uid: str | None = None) -> str:
        """Creates or overwrites a dashboard; returns its address within Grafana."""
        body: dict[str, Any] = {"dashboard": dict(board), "overwrite": True, "message": MESSAGE}
        if folder_uid is not None:
            body["folderUid"] = folder_uid
        answer = self._call(f"dashboard {board['uid']}", self._api.dashboard.update_dashboard, body)
        return str(answer.get("url", ""))

    def annotate(self, wanted: Iterable[Mark]) -> int:
        """Puts marks on the dashboards of a run; returns how many were new."""
        made = 0
        for uid in RUN_UIDS:
            known = self._known(uid)
            for mark in wanted:
                if (_milliseconds(mark), mark.text, frozenset(mark.tags)) not in known:
                    self._add(uid, mark)
                    made += 1
        return made

    def _known(self, uid: str) -> set[tuple[int, str, frozenset[str]]]:
        find = self._api.annotations.find_annotations
        found = self._call("annotations", find, dashboard_uid=uid, tags=["triage"], limit=5000)
        return {(item["time"], item["text"], frozenset(item["tags"])) for item in found}

    def _add(self, uid: str, mark: Mark) -> None:
        add, at = self._api.annotations.add_annotation, _milliseconds(mark)
        self._call(
            "annotations", add, dashboard_uid=uid, time_from=at, time_to=at, tags=list(mark.tags), text=mark.text
        )

    def _call(self, what: str, call: Any, *words: Any, **named: Any) -> Any:
        try:
            return call(*words, **named)
        except self._failure as error:
            raise TriageError(f"{what}: {self._url} answered {error.status_code}: {error.message}") from error
        except OSError as error:  # what requests raises is one
            kind = type(error).__name__
            raise TriageError(
                f"{what}: no answer from {self._url} ({kind}): is it running, is it Grafana's?"
            ) from error


def _milliseconds(mark: Mark) -> int:
    return round(mark.at * 1000)
