"""The gate: what a request must be before anything is done for it, and the headers that each answer has.

- *Host*: without TLS the console is on loopback alone, and is asked by a name of this machine.  Otherwise a page of
  elsewhere could have its own name lead here (DNS rebinding) and read what is answered.
- *Method*: GET and HEAD, but for the form by which a person gives the token.
- *Where from*: a browser says by which site a request was made (`Sec-Fetch-Site`).  Another site may link to the page;
  its scripts may ask for nothing.
- *Token*, where one is set: `Authorization: Bearer …`, or the cookie that the form gives.  The cookie holds a name
  that is made by chance, not the token.
"""

from __future__ import annotations

import hmac
import threading
from collections import OrderedDict
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.store.clock import Clock, Ids
from strandline.store.secret import Secret

BEARER: Final = "Bearer "
LOGIN: Final = "/login"
OPEN: Final = frozenset({LOGIN, "/console.css", "/icon.svg"})
"""What is shown to those who have not given the token yet."""
SESSIONS_MAX: Final = 1_000
SESSION_S: Final = 12 * 3600
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Sessions:
    """Browsers that have given the token, by what their cookies hold; the oldest are forgotten first."""

    def __init__(self, token: Secret | None, clock: Clock, ids: Ids) -> None:
        self._token = token
        self._clock = clock
        self._ids = ids
        self._until: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def wanted(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def is_token(self, shown: str) -> bool:
        """Return whether a text is the token, compared in constant time."""
        return self._token is not None and hmac.compare_digest(shown.encode(), self._token.reveal().encode())

    def begin(self) -> str:
        """Return what the cookie of another browser is to hold."""
        name = self._ids.fresh("session")
        with self._lock:
            self._until[name] = self._clock.now_ms() + 1000 * SESSION_S
            while len(self._until) > SESSIONS_MAX:
                self._until.popitem(last=False)
        return name

    def holds(self, name: str) -> bool:
        """Return whether a cookie lets its browser in."""
        with self._lock:
            return self._until.get(name, 0) > self._clock.now_ms()


class Gate:
    """See the module.  ``cookie``: the name of the cookie; browsers send one of this machine to all of its ports."""

    def __init__(self, app: ASGIApp, sessions: Sessions, cookie: str, *, loopback: bool) -> None:
        self._app = app
        self._sessions = sessions
        self._cookie = cookie
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        await (self._app if refused is None else refused)(scope, receive, headed)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        if self._loopback and not _is_here(headers.get("host", "")):
            return PlainTextResponse("ask for this console by a name of this machine, such as 127.0.0.1\n", 421)
        posts = method == "POST" and path == LOGIN and self._sessions.wanted
        if not posts and method not in {"GET", "HEAD"}:
            return PlainTextResponse("this console is only to be read\n", 405, {"allow": "GET, HEAD"})
        site = headers.get("sec-fetch-site", "none")
        if site not in {"none", "same-origin"} and (posts or headers.get("sec-fetch-mode") != "navigate"):
            return PlainTextResponse("another site may link to this console, and ask for nothing else\n", 403)
        if not self._sessions.wanted or path in OPEN or self._is_let_in(headers):
            return None
        if headers.get("sec-fetch-mode") == "navigate" or "text/html" in headers.get("accept", ""):
            return RedirectResponse(LOGIN, 303)
        why = "the token that was shown is another one" if "authorization" in headers else "no token was shown"
        return PlainTextResponse(
            f"{why}; this console wants its own (authorization: Bearer …)\n", 401, {"www-authenticate": "Bearer"}
        )

    def _is_let_in(self, headers: Headers) -> bool:
        shown = headers.get("authorization", "")
        if shown.startswith(BEARER) and self._sessions.is_token(shown.removeprefix(BEARER)):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self._cookie in cookies and self._sessions.holds(cookies[self._cookie].value)


def _is_here(host: str) -> bool:
    """Return whether a Host header names this machine, as only this machine's own programs name it.

    >>> _is_here("127.0.0.1:8080"), _is_here("localhost"), _is_here("[::1]:80"), _is_here("evil.example:8080")
    (True, True, True, False)
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
