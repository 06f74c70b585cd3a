"""What the server answers when it cannot serve: HTTP status and OpenAI's error body.

400 invalid_request_error     the body is no JSON, a field is wrong or unsupported, the prompt is too long
404 not_found_error           another model, another path
408 timeout_error             the body did not arrive in time
413 invalid_request_error     the body is too large
429 rate_limit_error          the queue is full; Retry-After says when to try again
500 server_error              the engine failed
503 unavailable_error         the server is shutting down or its engine has failed
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

KINDS = {404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error", 503: "unavailable_error"}


class Problem(Exception):
    """An answer that is an error, in the shape that OpenAI's clients understand."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error as JSON."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error as an answer."""
        return JSONResponse(self.body(), self.status, headers=dict(self.headers or {}))


def answer_problems(app: FastAPI) -> None:
    """Give every error of an application OpenAI's shape."""

    async def on_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error.response()

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return Problem(error.status_code, message, headers=error.headers).response()

    async def on_bug(_: Request, error: Exception) -> Response:
        return Problem(500, f"internal error: {type(error).__name__}").response()

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)
