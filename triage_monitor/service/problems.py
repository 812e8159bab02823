"""Problem documents (RFC 9457): every refusal is JSON that says what was wrong, where, and under which reason.

    {"type": "urn:triage-monitor:problem:length", "title": "Unprocessable content", "status": 422,
     "detail": "column 'mask': ...", "reason": "length", "column": "mask", "row": 0}

`reason` is a stable slug, the same that counters use. Errors of the package map to a status here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from triage_monitor.errors import ConflictError, InputError, StoreCorrupt, StoreFull, TriageError

PROBLEM_MIME = "application/problem+json"
RETRY_AFTER_SECONDS = 1
# Bytes that are no stream or no summary at all; every other InputError is content that was understood and refused.
DAMAGE = frozenset(
    {
        *("empty_body", "damaged_stream", "truncated_stream", "checksum", "row_count", "dictionary"),
        *("summary_damaged", "summary_shape", "summary_spec", "summary_version"),
    }
)
TOO_LARGE = frozenset({"too_large", "summary_too_large"})


class Problem(Exception):
    """Raised anywhere below a route; becomes the answer."""

    def __init__(
        self, status: int, reason: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = {name: value for name, value in extra.items() if value is not None}

    def response(self) -> JSONResponse:
        body = {
            "type": f"urn:triage-monitor:problem:{self.reason}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
            **self.extra,
        }
        return JSONResponse(body, self.status, headers=self.headers, media_type=PROBLEM_MIME)


def busy(reason: str, detail: str) -> Problem:
    return Problem(503, reason, detail, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def problem_of(error: TriageError) -> Problem:
    """The answer that an error of the package deserves."""
    if isinstance(error, InputError):
        status = 413 if error.reason in TOO_LARGE else 400 if error.reason in DAMAGE else 422
        return Problem(status, error.reason, str(error), column=error.column, row=error.row)
    if isinstance(error, ConflictError):
        return Problem(409, "conflict", str(error))
    if isinstance(error, StoreFull):
        return Problem(507, "store_full", str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    if isinstance(error, StoreCorrupt):
        return Problem(503, "store_corrupt", str(error))
    return Problem(500, "failed", str(error))


def install(app: FastAPI) -> None:
    """Makes every refusal of `app` a problem document, the framework's own included."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> JSONResponse:
        return error.response()

    @app.exception_handler(TriageError)
    async def _ours(_: Request, error: TriageError) -> JSONResponse:
        return problem_of(error).response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = [str(part) for part in first["loc"]]
        column = ".".join(where[1:]) or where[0]
        return Problem(422, "bad_request", f"{where[0]} '{column}': {first['msg']}", column=column).response()

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        reason = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        return Problem(error.status_code, reason, str(error.detail), headers=error.headers).response()

    @app.exception_handler(Exception)
    async def _bug(_: Request, error: Exception) -> JSONResponse:
        return Problem(500, "internal_error", f"an internal error: {type(error).__name__}").response()
