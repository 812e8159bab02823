"""Every error this package raises on purpose.

    TriageError
      InputError        what a caller gave is wrong; names reason, column, row, file   (HTTP 4xx, exit code 2)
        SpecMismatch    two summaries made under different specs were to be merged
      ConfigError       a setting is wrong; raised when a thing is built, never later  (exit code 2)
      ConflictError     the same key was sent before with other content                (HTTP 409)
      StoreFull         the disk or a configured bound is full; try again later        (HTTP 507 / 503)
      StoreCorrupt      stored bytes do not verify; they are never served

Anything else that escapes is a bug.
"""

from __future__ import annotations


class TriageError(Exception):
    """Root of the family."""


class InputError(TriageError, ValueError):
    """Bad input. `reason` is a stable slug for counters; `detail` is the sentence for people."""

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        column: str | None = None,
        row: int | None = None,
        path: str | None = None,
    ) -> None:
        self.reason = reason
        self.detail = detail
        self.column = column
        self.row = row
        self.path = path
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        where = [
            part
            for part in (
                self.path,
                f"row {self.row}" if self.row is not None else None,
                f"column '{self.column}'" if self.column is not None else None,
            )
            if part is not None
        ]
        return f"{', '.join(where)}: {self.detail}" if where else self.detail

    def at(self, *, path: str | None = None, row: int | None = None) -> InputError:
        """The same error with its place filled in by a caller that knows it."""
        return type(self)(
            self.reason,
            self.detail,
            column=self.column,
            row=self.row if row is None else row,
            path=self.path if path is None else path,
        )


class SpecMismatch(InputError):
    """Summaries under different specs never merge: nothing is re-binned."""


class ConfigError(TriageError, ValueError):
    """A setting is wrong."""


class ConflictError(TriageError):
    """A key was reused with other content."""


class StoreFull(TriageError):
    """No room; nothing was kept; the sender may retry."""


class StoreCorrupt(TriageError):
    """Stored bytes failed verification."""
