"""Who may ask the console what: by which name, how, from where, and with which token."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from console_shown import Console, Hands, figures_of, shown
from strandline.console import service
from strandline.console.gate import SESSION_S, SESSIONS_MAX, Sessions
from strandline.console.service import at
from strandline.controller.location.config import Config, config_from
from strandline.errors import ConfigError
from strandline.serving import Door
from strandline.store.clock import SystemIds
from strandline.store.secret import Secret

TOKEN = "a-token-that-is-not-shown"
FORM = {"content-type": "application/x-www-form-urlencoded"}
PATHS = ("/", "/console.js", "/api/environment", "/api/item?name=sessions", "/metrics")


@pytest.fixture
def locked() -> Iterator[Console]:
    """A console that wants a token."""
    with shown(figures_of(Hands()), Door(service.ANYWHERE, Secret(TOKEN))) as served:
        served.watch.look()
        yield served


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:1", ""])
def test_a_name_that_leads_here_from_elsewhere_is_refused(console: Console, host: str) -> None:
    """Damage: a page has its own name lead to 127.0.0.1 and reads the console of its visitor."""
    assert {console.ask(path, {"host": host})[0] for path in PATHS} == {421}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:9", "127.8.9.1"])
def test_names_of_this_machine_are_served(console: Console, host: str) -> None:
    """Damage: a person who forwards a port cannot open the page."""
    assert {console.ask(path, {"host": host})[0] for path in PATHS} == {200}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_served(console: Console, method: str) -> None:
    """Damage: a request changes something at a door that is described as read-only."""
    for path in (*PATHS, "/login"):
        status, headers, _ = console.ask(path, method=method)
        assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert console.ask("/", method="HEAD")[::2] == (200, "")


def test_each_answer_says_what_a_browser_may_do_with_it(console: Console) -> None:
    """Damage: another site embeds the page, or a name of a table runs as a script."""
    for path in (*PATHS, "/nowhere"):
        _, headers, _ = console.ask(path)
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_link_here_and_ask_for_nothing(console: Console, site: str) -> None:
    """Damage: a page of another port of this machine has the console count errors, again and again."""
    assert console.ask("/api/environment", {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})[0] == 403
    assert console.ask("/", {"sec-fetch-site": site, "sec-fetch-mode": "navigate"})[0] == 200
    assert console.ask("/api/environment", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})[0] == 200


def test_without_the_token_nothing_is_shown(locked: Console) -> None:
    """Damage: another user of the machine reads names, definitions and rows."""
    for path in PATHS:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": TOKEN},
            {"cookie": f"strandline={TOKEN}"},
        ):
            status, said, body = locked.ask(path, headers)
            assert (status, said["www-authenticate"]) == (401, "Bearer")
            assert "sessions" not in body
        assert locked.ask(f"{path}{'&' if '?' in path else '?'}token={TOKEN}")[0] == 401, (
            "a URL is no place for a token"
        )
        assert locked.ask(path, {"authorization": f"Bearer {TOKEN}"})[0] == 200


def test_a_person_gives_the_token_once(locked: Console) -> None:
    """Damage: a person cannot open the page in a browser, which sends no header; or the token is kept in a cookie."""
    status, headers, _ = locked.ask("/", {"accept": "text/html"})
    assert (status, headers["location"]) == (303, "/login")
    assert "<form" in locked.ask("/login")[2]
    status, headers, page = locked.ask("/login", FORM, "POST", urlencode({"token": "wrong"}))
    assert (status, "set-cookie" in headers) == (401, False)
    assert "not the token" in page
    status, headers, _ = locked.ask("/login", FORM, "POST", urlencode({"token": TOKEN}))
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict"} <= {each.strip() for each in cookie.split(";")}
    sent = {"cookie": cookie.partition(";")[0]}
    assert {locked.ask(path, sent)[0] for path in PATHS} == {200}
    locked.clock.ms += 1000 * SESSION_S
    assert {locked.ask(path, sent)[0] for path in PATHS} == {401}


@pytest.mark.parametrize("form", ["", "token", "token=%ff", "other=1", "token=" + "x" * 10_000])
def test_a_form_that_is_none_is_refused(locked: Console, form: str) -> None:
    """Damage: a form as long as memory, or one that cannot be read, ends the server."""
    assert locked.ask("/login", FORM, "POST", form)[0] == 401
    assert locked.ask("/login")[0] == 200


def test_another_site_cannot_send_the_form(locked: Console) -> None:
    """Damage: a page tries tokens through the browser of its visitor."""
    headers = {**FORM, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert locked.ask("/login", headers, "POST", urlencode({"token": TOKEN}))[0] == 403


def test_cookies_are_bounded() -> None:
    """Damage: who knows the token fills the memory of the process."""
    sessions = Sessions(Secret(TOKEN), Hands(), SystemIds())
    names = [sessions.begin() for _ in range(SESSIONS_MAX + 1)]
    assert [sessions.holds(names[0]), sessions.holds(names[1]), sessions.holds(names[-1])] == [False, True, True]


def test_off_loopback_it_needs_the_token_and_tls() -> None:
    """Damage: a console at 0.0.0.0 shows rows to everyone on the network."""
    with (
        pytest.raises(ConfigError, match=r"the console: serving at 0\.0\.0\.0:0 needs a token"),
        shown(figures_of(Hands()), Door("0.0.0.0:0")),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"the console: 0\.0\.0\.0:0 is not loopback, so serving there needs TLS"),
        shown(figures_of(Hands()), Door("0.0.0.0:0", Secret(TOKEN))),
    ):
        pass


def test_with_tls_it_is_reached_by_its_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Damage: a console off loopback cannot be opened, or crosses the network in the clear."""
    chain, key = certificate
    with shown(figures_of(Hands()), Door("127.0.0.1:0", Secret(TOKEN), chain, key)) as served:
        assert served.url.startswith("https://127.0.0.1:")
        known = ssl.create_default_context(cafile=str(chain))
        request = urllib.request.Request(f"{served.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, context=known, timeout=120) as answer:
            assert b"strandline_tick_seconds" in answer.read()
    chain.write_text("no certificate")
    with pytest.raises(ConfigError, match="`serve_certificate`, `serve_key`: they cannot be used"):
        shown(figures_of(Hands()), Door("127.0.0.1:0", Secret(TOKEN), chain, key)).__enter__()


def test_a_port_that_is_taken_is_named(console: Console) -> None:
    """Damage: `run` ends with an error of a socket, and nothing says whose."""
    taken = console.url.removeprefix("http://")
    with (
        pytest.raises(
            ConfigError, match=rf"cannot serve the console at {taken} \(`console_at`\): the port is taken by"
        ),
        shown(figures_of(Hands()), Door(taken)),
    ):
        pass


def test_the_configuration_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an operator who wants no console gets one, or finds it at another port each day."""
    assert at(Config(console_at="none")) is None
    assert at(Config()) == Door("127.0.0.1:0")
    monkeypatch.setenv("CONSOLE_TOKEN", TOKEN)
    fixed = at(config_from({"console_at": "127.0.0.1:9090", "serve_token": "env:CONSOLE_TOKEN"}))
    assert fixed is not None
    assert (fixed.address, fixed.token and fixed.token.reveal()) == ("127.0.0.1:9090", TOKEN)
