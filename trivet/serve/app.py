"""The HTTP face: routes as data, what is done at each, and the door that every request passes."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivet import __version__
from trivet.base.errors import RequestError, TrivetError, UnavailableError
from trivet.framework.engine.params import SamplingParams
from trivet.serve.errors import HttpError, refusal
from trivet.serve.frames import ChatWriter, CompletionWriter, Heading
from trivet.serve.generation import Generation
from trivet.serve.log import event
from trivet.serve.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, conversation, decode
from trivet.serve.service import ServedModel, Service
from trivet.serve.stream import ClientGone, EventStream, unless_gone

_log = logging.getLogger("trivet.serve")

Handler = Callable[[Service, Request], Awaitable[Response]]


def create_app(service: Service) -> Starlette:
    """The ASGI application of `service`, for any server that speaks ASGI."""
    return Starlette(
        routes=[Route(path, partial(handler, service), methods=[method]) for method, path, handler in ROUTES],
        middleware=[Middleware(Door, service=service)],
        exception_handlers={HTTPException: _not_routed},
    )


async def chat(service: Service, request: Request) -> Response:
    model = service.model()
    body = decode(await _read(service, request), ChatBody)
    service.check_model_name(body.model)
    params = body.sampling()
    messages, options = conversation(body.messages), body.template_options()
    # In a thread: a long text takes tens of milliseconds, in which no other stream would move.
    prompt = await asyncio.to_thread(_chat_prompt, model, messages, options)
    return await _answer(service, request, body, [prompt], params)


async def completions(service: Service, request: Request) -> Response:
    model = service.model()
    body = decode(await _read(service, request), CompletionBody)
    service.check_model_name(body.model)
    params = body.sampling()
    prompts = await asyncio.to_thread(_text_prompts, model, body.prompts())
    return await _answer(service, request, body, prompts, params)


async def models(service: Service, request: Request) -> Response:
    return _json({"object": "list", "data": [_model_card(service)]})


async def model(service: Service, request: Request) -> Response:
    service.check_model_name(request.path_params["name"])
    return _json(_model_card(service))


async def tokenize(service: Service, request: Request) -> Response:
    model = service.model()
    body = decode(await _read(service, request), TokenizeBody)
    service.check_model_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt and messages: one of them is wanted", parameter="prompt")
    if body.messages is not None:
        tokens = await asyncio.to_thread(_chat_prompt, model, conversation(body.messages), {})
    else:
        tokens = await asyncio.to_thread(model.tokenizer.encode, body.prompt or "", add_special=body.add_special_tokens)
    return _json({"count": len(tokens), "max_model_len": model.max_context, "tokens": tokens})


async def detokenize(service: Service, request: Request) -> Response:
    model = service.model()
    body = decode(await _read(service, request), DetokenizeBody)
    service.check_model_name(body.model)
    if not all(0 <= token < model.vocab_size for token in body.tokens):
        raise RequestError(f"tokens has one outside 0 to {model.vocab_size - 1}", parameter="tokens")
    return _json({"prompt": await asyncio.to_thread(model.tokenizer.decode, body.tokens)})


async def health(service: Service, request: Request) -> Response:
    """Live: a restart would not help. True while loading and draining too."""
    if not service.is_alive:
        raise UnavailableError("the engine has stopped", "restart the server; its log says why it stopped")
    return _json({"status": "alive"})


async def ready(service: Service, request: Request) -> Response:
    """Ready: send traffic here."""
    service.model()
    await health(service, request)
    return _json({"status": service.phase})


async def metrics(service: Service, request: Request) -> Response:
    from trivet.serve import scrape  # Prometheus' client, which no answer needs

    return Response(scrape.page(service), media_type=scrape.CONTENT_TYPE)


async def version(service: Service, request: Request) -> Response:
    return _json({"version": __version__})


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", completions),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", model),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/health", health),
    ("GET", "/ready", ready),
    ("GET", "/metrics", metrics),
    ("GET", "/version", version),
)
# Asked by orchestrators and collectors every few seconds: without a key, and without a line in the log.
PROBES = frozenset({"/health", "/ready", "/metrics"})
_PATHS = frozenset(path for _, path, _ in ROUTES)


class Door:
    """What every request passes, in and out: its id, its key, its refusal if it fails, its line in the log."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started_s = time.monotonic()
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope.setdefault("state", {})
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if scope["path"] not in PROBES:
                self._service.check_key(headers.get("authorization"))
            await self._app(scope, receive, send_with_id)
        except (ClientGone, ClientDisconnect):
            status = status or 499  # nginx's number for a client that did not wait; nobody receives it
        except Exception as error:
            if not isinstance(error, TrivetError):
                _log.exception(event("request_failed", request_id=request_id))
            if status is not None:
                raise
            await _refused(error)(scope, receive, send_with_id)
        finally:
            self._record(scope, request_id, status, started_s)

    def _record(self, scope: Scope, request_id: str, status: int | None, started_s: float) -> None:
        path = scope["path"]
        handler = path if path in _PATHS else "other"  # a label must not grow with what strangers ask for
        self._service.requests[scope["method"], handler, status or 500] += 1
        if path in PROBES and status == 200:
            return
        tally = scope["state"].get("tally")
        duration_ms = (time.monotonic() - started_s) * 1e3
        fields = {} if tally is None else tally.fields()
        _log.info(event("request", request_id=request_id, method=scope["method"], path=path, status=status or 500,
                        duration_ms=duration_ms, **fields))  # fmt: skip


async def _read(service: Service, request: Request) -> bytes:
    """The request's body, of whatever content type: curl calls JSON a form."""
    limits = service.limits
    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.max_body_bytes:
                    raise HttpError(413, "body_too_large", f"the body is above {limits.max_body_bytes} bytes",
                                    "send a shorter prompt", headers={"connection": "close"})  # fmt: skip
    except TimeoutError:
        raise HttpError(408, "body_too_slow", f"the body did not arrive within {limits.read_s:g} s",
                        headers={"connection": "close"}) from None  # fmt: skip
    return bytes(body)


def _chat_prompt(model: ServedModel, messages: list[dict[str, str]], options: dict[str, Any]) -> list[int]:
    # The template writes the special tokens out, so the tokenizer must not add its own.
    text = model.chat_template.render(messages, add_generation_prompt=True, **options)
    return model.tokenizer.encode(text, add_special=False)


def _text_prompts(model: ServedModel, prompts: list[str | list[int]]) -> list[list[int]]:
    encode = model.tokenizer.encode
    return [encode(prompt, add_special=True) if isinstance(prompt, str) else prompt for prompt in prompts]


async def _answer(
    service: Service,
    request: Request,
    body: ChatBody | CompletionBody,
    prompts: list[list[int]],
    params: SamplingParams,
) -> Response:
    prefix, kind = ("chatcmpl-", ChatWriter) if isinstance(body, ChatBody) else ("cmpl-", CompletionWriter)
    answer_id = prefix + uuid.uuid4().hex
    generation = Generation(service, answer_id, prompts, params, body.salt, body.terms)
    request.state.tally = generation.tally
    heading = Heading(answer_id, int(time.time()), service.model_name)
    writer = kind(heading, service.model().tokenizer, body.wants_usage)
    if body.stream:
        return EventStream(generation.frames(writer, body.wants_usage, body.wants_running_usage))
    answer = generation.body(writer, has_logprobs=params.logprobs is not None)
    return Response(await unless_gone(request.receive, answer), media_type="application/json")


def _model_card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "trivet",
        "max_model_len": service.model().max_context,
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _refused(error: Exception) -> Response:
    told = refusal(error)
    return Response(told.body(), told.status, dict(told.headers), media_type="application/json")


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return _refused(HttpError(405, "method_not_allowed", f"{path} does not answer {request.method}",
                                  f"send {allowed}", headers=error.headers))  # fmt: skip
    return _refused(HttpError(error.status_code, "not_found", f"{path} is not served here",
                              "see /v1/models and /v1/chat/completions"))  # fmt: skip


def _request_id(sent: str | None) -> str:
    """The client's id if it is one that a log line can bear, or a new one."""
    return sent if sent is not None and re.fullmatch(r"[\w.:-]{1,128}", sent, re.ASCII) else uuid.uuid4().hex
