"""Recorded updates on disk: `iter_updates` reads the contract's forms in bounded memory, `RecordingWriter` writes it."""

from __future__ import annotations

from triage_monitor.storage.recordings_write import RecordingWriter

__all__ = ["RecordingWriter"]
