"""The HTTP side: routes, limits and what leaves when a client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from backend.serve.answers import Answer, Head, frames, whole
from backend.serve.bodies import (
    COMPLETION_TOKENS,
    Body,
    ChatBody,
    CompletionBody,
    chat_prompt,
    choices_of,
    completion_prompt,
    order_of,
    parse,
    short,
)
from backend.serve.engine import Engine, EngineFull, EngineStopped
from backend.serve.metrics import Gauges, Metrics
from backend.serve.problems import Problem, answer_problems
from backend.serve.seam import Backing, Order
from backend.serve.streams import EventStream, while_connected
from backend.serve.ticket import Ticket

DRAINED_BODY = 8  # a body this many times too large is still read to its end, so that its sender hears why


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost. ``queue``: requests held beyond those that can run."""

    queue: int = 1024
    head_s: float = 60.0  # for a request's head to arrive
    body_bytes: int = 4 << 20
    body_s: float = 60.0  # for a request's body to arrive
    backlog_tokens: int = 4096  # unread by a slow client before its request is cancelled
    stall_s: float = 60.0  # that a client may take nothing while there is something for it
    drain_s: int = 30  # for running answers at shutdown
    retry_after_s: int = 1


class Service:
    """One engine and what its clients share."""

    def __init__(self, backing: Backing, limits: Limits) -> None:
        self.backing = backing
        self.limits = limits
        self.created = int(time())
        facts = {
            "block_size": str(backing.block_size),
            "num_gpu_blocks": str(backing.kv_blocks),
        }
        metrics = Metrics(backing.model_name, backing.max_model_len, facts)
        self.engine = Engine(
            backing.scheduler,
            backing.executor,
            metrics,
            backing.clock,
            capacity=backing.seats + limits.queue,
            backlog_tokens=limits.backlog_tokens,
        )
        metrics.gauges = self._gauges
        self.registry = CollectorRegistry()
        self.registry.register(metrics)

    def _gauges(self) -> Gauges:
        scheduler = self.backing.scheduler
        usage = scheduler.used_blocks / self.backing.kv_blocks
        return Gauges(self.engine.running_requests, scheduler.waiting_requests, usage)

    def model_card(self) -> dict[str, Any]:
        """What /v1/models says of the one model."""
        return {
            "id": self.backing.model_name,
            "object": "model",
            "created": self.created,
            "owned_by": "servetwin",
            "max_model_len": self.backing.max_model_len,
        }

    def check_model(self, name: str | None) -> None:
        """Only the model that is served may be asked for; none named means that one."""
        if name not in {None, self.backing.model_name}:
            message = f"model: {short(name)} is not served here; this is {self.backing.model_name!r}"
            raise Problem(404, message, code="model_not_found", param="model")

    async def body(self, request: Request) -> bytes:
        """A request's body, or the problem with its size or pace."""
        try:
            async with asyncio.timeout(self.limits.body_s):
                return await self._read(request)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {self.limits.body_s:g} s") from None

    async def _read(self, request: Request) -> bytes:
        most, seen = self.limits.body_bytes, 0
        parts: list[bytes] = []
        async for part in request.stream():
            seen += len(part)
            if seen <= most:
                parts.append(part)
            elif seen > DRAINED_BODY * most:
                break
        if seen > most:
            raise Problem(413, f"the body is larger than {most:,} bytes", code="request_too_large")
        return b"".join(parts)

    async def answer(self, request: Request, head: Head, body: Body, order: Order) -> Response:
        """Serve the answers to one prompt, streamed or whole."""
        tickets: list[Ticket] = []

        def cancel() -> None:
            for ticket in tickets:
                self.engine.cancel(ticket)

        try:
            for one in choices_of(order, body.n or 1):
                tickets.append(self._submit(one))  # noqa: PERF401 those before a refusal must be known
            answers = [Answer(ticket, self.backing.text.decoder(), body.stops) for ticket in tickets]
            if not body.stream:
                found = await while_connected(request.receive, whole(head, answers))
                cancel()
                return JSONResponse(found)
            for answer in answers:
                await answer.ticket.settled()
                if answer.ticket.ended and (problem := answer.problem(answer.ticket.ended)):
                    raise problem
        except BaseException:
            cancel()
            raise
        streamed = frames(head, answers, wants_usage=body.wants_usage)
        return EventStream(streamed, self.limits.stall_s, cancel)

    def _submit(self, order: Order) -> Ticket:
        retry = {"Retry-After": str(self.limits.retry_after_s)}
        try:
            return self.engine.submit(order)
        except EngineFull as error:
            raise Problem(429, str(error), code="queue_full", headers=retry) from None
        except EngineStopped as error:
            raise Problem(503, str(error), code="unavailable", headers=retry) from None


def make_app(service: Service) -> FastAPI:
    """The application; its engine runs while the application does."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start(asyncio.get_running_loop())
        yield
        service.engine.close()

    app = FastAPI(
        title="ServeTwin", version="1", docs_url=None, redoc_url=None, lifespan=lifespan
    )  # the pages of docs_url would load scripts from elsewhere
    answer_problems(app)
    _add_inference(app, service)
    _add_operations(app, service)
    return app


def _add_inference(app: FastAPI, service: Service) -> None:
    text, longest = service.backing.text, service.backing.max_model_len

    @app.post("/v1/completions", openapi_extra=_takes(CompletionBody))
    async def complete(request: Request) -> Response:
        """Continue a text."""
        body = parse(CompletionBody, await service.body(request))
        service.check_model(body.model)
        order = order_of(body, completion_prompt(body, text), longest, COMPLETION_TOKENS)
        return await service.answer(request, _head("text", service), body, order)

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatBody))
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        body = parse(ChatBody, await service.body(request))
        service.check_model(body.model)
        order = order_of(body, chat_prompt(body, text), longest, None)
        return await service.answer(request, _head("chat", service), body, order)


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [service.model_card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model by its name."""
        service.check_model(name)
        return service.model_card()

    @app.get("/health")
    async def health() -> Response:
        """200 while requests are served, 503 otherwise."""
        if not service.engine.healthy:
            raise Problem(503, service.engine.failure or "not running", code="unavailable")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus text format."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(service.registry), media_type=content_type)


def _head(kind: Any, service: Service) -> Head:
    prefix = "cmpl" if kind == "text" else "chatcmpl"
    return Head(kind, f"{prefix}-{uuid4().hex}", int(time()), service.backing.model_name)


def _takes(kind: type[Body]) -> dict[str, Any]:
    """The OpenAPI description of a body that `parse` checks."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": kind.model_json_schema()}},
        }
    }
