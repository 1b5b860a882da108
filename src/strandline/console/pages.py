"""Pages: what can be asked for.  One page, its scripts and its style; two documents of JSON; metrics; a form."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from strandline.console import document
from strandline.console.gate import LOGIN, SESSION_S, Gate, Sessions
from strandline.console.metrics import Metrics
from strandline.console.watch import Watch
from strandline.errors import StrandlineError, first_line

_SCRIPTS: Final = ("console", "elements", "find", "graph", "layout", "list", "panel", "plots")
_STATIC: Final = {
    "/": ("console.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_FORM_BYTES_MAX: Final = 4096


def application(watch: Watch, sessions: Sessions, cookie: str, *, loopback: bool, secure: bool) -> Gate:
    """Return the console as an ASGI application.  ``secure``: it is reached by TLS."""
    metrics = Metrics(watch)

    def environment(_: Request) -> Response:
        return _json(document.environment(watch))

    def item(request: Request) -> Response:
        try:
            found = document.item(watch, request.query_params.get("name", ""))
        except StrandlineError as error:
            return _json({"error": first_line(error)}, 503)
        return _json({"error": "there is no such item"}, 404) if found is None else _json(found)

    def scraped(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": kind})

    async def login(request: Request) -> Response:
        page = _read("login.html")
        if request.method != "POST":
            return _shown(page)
        token = await _token(request)
        if token is None or not sessions.is_token(token):
            return _shown(page.replace(b"<!-- refused -->", b"That is not the token of this environment."), 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie, sessions.begin(), SESSION_S, httponly=True, samesite="strict", secure=secure)
        return answer

    routes = [
        *(Route(path, _file(*each)) for path, each in _STATIC.items()),
        Route("/api/environment", environment),
        Route("/api/item", item),
        Route("/metrics", scraped),
        *([Route(LOGIN, login, methods=["GET", "POST"])] if sessions.wanted else []),
    ]
    return Gate(Starlette(routes=routes), sessions, cookie, loopback=loopback)


def _file(name: str, kind: str) -> Any:
    found = _read(name)

    async def answer(_: Request) -> Response:
        return Response(found, headers={"content-type": kind})

    return answer


def _read(name: str) -> bytes:
    return files("strandline.console").joinpath("static", name).read_bytes()


def _shown(page: bytes, status: int = 200) -> Response:
    return Response(page, status, {"content-type": "text/html; charset=utf-8"})


def _json(found: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(found), status, {"content-type": "application/json"})


async def _token(request: Request) -> str | None:
    """Return the token that a form holds; None if there is none, or the form is longer than one has to be."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES_MAX:
            return None
    try:
        return parse_qs(body.decode(), strict_parsing=True)["token"][0]
    except (ValueError, KeyError):
        return None
