"""The page in a real browser: what a person sees, by mouse and by keyboard, on wide and narrow screens.

With `STRANDLINE_SCREENSHOTS=1` the test writes the pictures of docs/console.md anew.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from console_shown import BEGUN_MS, Console, Hands, Shown, an_hour, figures_of, item, items_of, shown
from strandline.console import service
from strandline.serving import Door
from strandline.store.secret import Secret

pytestmark = pytest.mark.server

PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)

CHROMIUM = shutil.which("chromium")
CALM = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
IMAGE_BYTES_MAX = 150 << 10
TURNED = "\u202eevil"
"""A name that turns the direction of the text."""
EVIL = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (tools/setup --servers installs it where it can)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CALM))
        yield started
        started.close()


@contextmanager
def page_of(
    browser: Browser, width: int = 1440, height: int = 900, scheme: str = "light", **how: Any
) -> Iterator[Page]:
    """Open a page that must say nothing on the console of the browser, and ask nothing of other hosts."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **how)
    said: list[str] = []
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    asked: list[str] = []
    yield page
    hosts = {url.split("/")[2] for url in asked if url.startswith("http")}
    context.close()
    assert said == []
    assert len(hosts) <= 1, hosts


def overflow(page: Page) -> int:
    """Return how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def cut(page: Page) -> list[str]:
    """Return the texts of the page that a box cuts, or that stand out of it; and the items outside of the graph."""
    return list(
        page.evaluate(
            """() => {
  const found = [];
  const within = (each, box) => each.left >= box.left - 1 && each.right <= box.right + 1;
  for (const element of document.querySelectorAll("header *, #left *, #panel *")) {
    const own = [...element.childNodes].filter((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own.length || !element.checkVisibility({ visibilityProperty: true })) continue;
    for (const text of own) {
      const range = document.createRange();
      range.selectNodeContents(text);
      for (let box = element; box && box !== document.documentElement; box = box.parentElement) {
        const how = getComputedStyle(box);
        const edge = box.getBoundingClientRect();
        const cuts = how.overflowY === "hidden" || box.matches(".node");
        const lost = [...range.getClientRects()].some((each) => each.width && (!within(each, edge) ||
          (cuts && (each.top < edge.top - 2 || each.bottom > edge.bottom + 2))));
        if (lost && how.display !== "inline" && how.display !== "contents") {
          found.push(`${text.textContent} (${box.tagName}.${box.className})`);
          break;
        }
      }
    }
  }
  const graph = document.getElementById("graph").getBoundingClientRect();
  for (const each of document.querySelectorAll(".node")) {
    if (!within(each.getBoundingClientRect(), graph)) found.push(`${each.title} stands out of the graph`);
  }
  return found;
}"""
        )
    )


def lie_on_each_other(page: Page) -> list[list[str]]:
    """Return the pairs of items of the graph that lie on each other."""
    return list(
        page.evaluate(
            """() => {
  const boxes = [...document.querySelectorAll(".node")].map((each) => [each.title, each.getBoundingClientRect()]);
  const pairs = boxes.flatMap((one, at) => boxes.slice(at + 1).map((other) => [one, other]));
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return pairs.filter(([[, a], [, b]]) => meet(a, b)).map(([[one], [other]]) => [one, other]);
}"""
        )
    )


def node(page: Page, name: str) -> Any:
    """Return the item of the graph that has a name."""
    return page.locator(".node").filter(has=page.locator(".name", has_text=name)).first


@pytest.fixture(scope="module")
def hour() -> Iterator[Console]:
    """A console over a pipeline that has been seen for an hour."""
    with shown(figures_of(Hands())) as served:
        an_hour(served)
        yield served


@pytest.mark.drawn(2)
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graph_a_view_and_an_error(browser: Browser, hour: Console, width: int, scheme: str) -> None:
    """Damage: an operator cannot see on this screen what stands still, nor why."""
    with page_of(browser, width, scheme=scheme) as page:
        page.goto(hour.url)
        expect(page.locator(".node")).to_have_count(14)  # the instance has a place of its own
        expect(page.locator(".sheet path")).to_have_count(16)
        expect(page.locator("#panel h2")).to_have_text("Needs a look")
        expect(page.locator("#panel")).to_contain_text("connection refused at db:5432")
        expect(page.locator("#legend")).to_contain_text("3 broken")
        expect(page.locator("#summary")).to_contain_text("2026-09-21T14:13:19Z")
        assert overflow(page) <= 0
        assert cut(page) == []

        node(page, "sessions").click()
        expect(page.locator("#panel h2")).to_have_text("sessions")
        expect(page.locator("#panel")).to_contain_text(str(BEGUN_MS - 899))  # beside its date
        expect(page.locator("#panel")).to_contain_text("2026-09-21T14:13:19Z")
        expect(page.locator("#panel")).to_contain_text("SELECT city, sum(n) AS n FROM sales")
        expect(page.locator("#panel")).to_contain_text("Plan: every part is updated from changes")
        expect(page.locator(".plot")).to_have_count(6)
        assert page.locator(".plot .line").first.get_attribute("d").count("L") > 300
        assert overflow(page) <= 0
        assert cut(page) == []

        node(page, "clicks").click()
        expect(page.locator("#panel h2")).to_have_text("clicks")
        expect(page.locator("#panel")).to_contain_text("3 rows with errors, since 2026-09-21T14:03:20Z")
        expect(page.locator("#panel")).to_contain_text("clicks[0]@17: it is no JSON")
        page.get_by_text("the row as it is kept").click()
        expect(page.locator("#panel")).to_contain_text('"raw": "{oops"')
        assert overflow(page) <= 0
        assert cut(page) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")) < 3 * 128
        assert dark == (scheme == "dark")


def test_it_goes_on_by_itself(browser: Browser, hour: Console) -> None:
    """Damage: the screen shows an hour ago, and looks as if it were now."""
    with page_of(browser) as page:
        page.goto(hour.url)
        expect(node(page, "daily")).to_have_class("node fresh")
        hour.env.items["daily"]["problem"] = "the store is full"
        hour.watch.look()
        try:
            expect(node(page, "daily")).to_have_class("node broken")
            expect(page.locator("#panel")).to_contain_text("the store is full")
        finally:
            hour.env.items["daily"]["problem"] = None
            hour.watch.look()


def test_by_keyboard_alone(browser: Browser, hour: Console) -> None:
    """Damage: who uses no mouse sees the first page and no other."""
    with page_of(browser) as page:
        page.goto(hour.url)
        expect(page.locator(".node")).to_have_count(14)
        page.keyboard.press("/")
        page.keyboard.type("sessions")
        expect(page.locator(".node:not(.dim)")).to_have_count(1)
        page.keyboard.press("Escape")
        node(page, "sessions").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#panel h2")).to_have_text("sessions")
        assert page.url.endswith("#sessions")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.locator("#panel h2")).not_to_have_text("sessions")
        page.keyboard.press("Escape")
        expect(page.locator("#panel h2")).to_have_text("Needs a look")
        page.go_back()
        page.go_back()
        expect(page.locator("#panel h2")).to_have_text("sessions")


def test_names_are_text_and_legible(browser: Browser) -> None:
    """Damage: who may create a table may run a script in an operator's browser; or one long name hides all others."""
    long = "a_view_whose_name_says_all_that_it_does_" * 8
    env = Shown(
        Hands(),
        {
            EVIL: item("table"),
            long: item("view", EVIL, problem=EVIL * 3, notices=[EVIL]),
            TURNED: item("view", long, seen="0/[1]"),
        },
        {TURNED: {"rows": 1, "first": [{EVIL: EVIL}], "since": BEGUN_MS, "told": [EVIL]}},
        others={EVIL: EVIL},
    )
    env.plans[long] = {"incremental": False, "reasons": [EVIL], "text": EVIL, "stages": []}
    with shown(env) as console:
        console.watch.look()
        for width in (360, 1440):
            with page_of(browser, width) as page:
                page.goto(console.url)
                for name in (EVIL, long, TURNED):
                    page.goto(f"{console.url}/#{name}".replace("<", "%3C"))
                    expect(page.locator("#panel h2")).to_have_text(name)
                    assert overflow(page) <= 0
                assert "taken" not in page.title()
                assert page.locator("#panel script, #panel img, #graph img, #graph script").count() == 0
                box = node(page, "a_view_whose_name").bounding_box()
                assert box is not None
                assert box["width"] < 230
                assert box["height"] < 130


@pytest.fixture(scope="module", params=[5, 50, 500])
def crowd(request: pytest.FixtureRequest) -> Iterator[Console]:
    """A console over few, many and very many items."""
    with shown(Shown(Hands(), items_of(request.param))) as served:
        served.watch.look()
        yield served


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1400, 900), (2560, 1400)])
def test_all_of_the_graph_fits_the_page(browser: Browser, crowd: Console, width: int, height: int) -> None:
    """Damage: endpoints stand right of the window's edge, and nothing says that there are any."""
    names = list(crowd.env.items)
    with page_of(browser, width, height) as page:
        page.goto(crowd.url)
        expect(page.locator(".node")).to_have_count(len(names))
        expect(page.locator("#all tbody tr")).to_have_count(len(names))
        expect(page.locator("#panel h2")).to_have_text("Needs a look")
        assert overflow(page) <= 0
        assert cut(page) == []
        assert lie_on_each_other(page) == []
        for name in names[:: max(2, len(names) // 2)]:
            page.keyboard.press("/")
            page.keyboard.type(name)
            expect(page.locator(".hit[aria-selected=true] .name")).to_have_text(name)
            page.keyboard.press("Enter")
            expect(page.locator("#panel h2")).to_have_text(name)
            expect(page.locator("#hits")).to_be_hidden()
            expect(page.locator("#panel h2")).to_be_in_viewport()
            if width > 1000:
                expect(page.locator(".node[aria-pressed=true]")).to_be_in_viewport()
            assert overflow(page) <= 0
            assert cut(page) == []


def test_a_deep_pipeline_fits_too(browser: Browser) -> None:
    """Damage: a chain of thirty views is a ribbon of which a page shows the beginning."""
    items = {"start": item("source")} | {
        f"step_{n}": item("view", f"step_{n - 1}" if n else "start") for n in range(30)
    }
    with shown(Shown(Hands(), items)) as console:
        console.watch.look()
        for width in (360, 1400):
            with page_of(browser, width) as page:
                page.goto(console.url)
                expect(page.locator(".node")).to_have_count(31)
                assert overflow(page) <= 0
                assert cut(page) == []
                assert lie_on_each_other(page) == []


def test_the_search_lists_its_hits_and_opens_one(browser: Browser, hour: Console) -> None:
    """Damage: what was looked for is pale somewhere below the window's edge, and Enter does nothing."""
    with page_of(browser) as page:
        page.goto(hour.url)
        expect(page.locator(".node")).to_have_count(14)
        page.keyboard.press("/")
        page.keyboard.type("ba")
        expect(page.locator(".hit .name")).to_have_text(["bank", "balances", "balances_by_account"])
        expect(page.locator("#all tbody tr")).to_have_count(3)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        active = page.locator("#filter").get_attribute("aria-activedescendant")
        expect(page.locator(f"#{active}")).to_contain_text("balances")
        page.keyboard.press("Enter")
        expect(page.locator("#panel h2")).to_have_text("balances")
        expect(page.locator("#panel h2")).to_be_focused()
        expect(page.locator(".node.dim")).to_have_count(0)
        page.keyboard.press("/")
        page.keyboard.type("nothing of this name")
        expect(page.locator("#hits")).to_contain_text("No item has “nothing of this name”")
        page.keyboard.press("Enter")
        expect(page.locator("#panel h2")).to_have_text("balances")
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("wide")  # an instance, which is not in the graph
        page.keyboard.press("Enter")
        expect(page.locator("#panel h2")).to_have_text("wide")
        expect(page.locator("#panel")).to_contain_text("strandline replica --listen 10.0.0.2:7071")


def test_queries_and_ways_out_are_commands_to_copy(browser: Browser, hour: Console) -> None:
    """Damage: an operator sees what is wrong and what is slow, and must leave the page to learn what to type."""
    with page_of(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(hour.url)
        panel = page.locator("#panel")
        expect(panel).to_contain_text("Running queries: 1")
        expect(panel.locator(".reason.fresh")).to_contain_text("upstream has columns that are not read: `wide` INT")
        expect(panel.locator(".reason.fresh")).to_contain_text("strandline acknowledge clicks")
        expect(panel).to_contain_text("12 ada at 10.0.0.9:51514, since 2026-09-21T14:12:15Z")
        expect(panel.locator(".queries pre")).to_contain_text("GROUP BY city ORDER BY n DESC")
        broken = panel.locator(".reason.broken").filter(has_text="connection refused at db:5432")
        expect(broken).to_have_count(1)
        expect(broken.locator("code")).to_have_text("strandline sync warehouse")
        page.get_by_label("Copy strandline cancel 12").click()
        expect(page.get_by_label("Copy strandline cancel 12")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "strandline cancel 12"
        hour.env.asked.append({**hour.env.asked[0], "number": 13})
        hour.watch.look()
        try:
            expect(panel).to_contain_text("Running queries: 2")
            expect(page.get_by_label("Copy strandline cancel 12")).to_be_focused()  # though the card was drawn anew
        finally:
            hour.env.asked.pop()
            hour.watch.look()


def test_counts_and_times_are_whole_and_of_one_form(browser: Browser) -> None:
    """Damage: "1 rows", half a number, and three ways to write one moment."""
    one = item("view", "t", rows=1, updates=1, parts=1, holders=1, step={"updates": 1, "ms": 84})
    items = {"t": item("table", rows=123_456_789_012, bytes=7 << 50), "v": one}
    items["v"]["waiting"] = "it waits for what was begun for it at 2026-09-21T14:10:00+00:00"
    items["out"] = item("materialization", "v", transactions=1, rows_stored=1, rows_deleted=1)
    with shown(Shown(Hands(), items)) as console:
        console.watch.look()
        for width in (360, 1400):
            with page_of(browser, width) as page:
                for name, texts in {
                    "t": ["123,456,789,012", "1,900 updates in 7 parts"],
                    "v": ["1 update in 1 part", "1 update read", "begun for it at 2026-09-21T14:10:00Z"],
                    "out": ["1 transaction", "1 row", "1 delete"],
                }.items():
                    page.goto(f"{console.url}/#{name}")
                    expect(page.locator("#panel h2")).to_have_text(name)
                    for text in texts:
                        expect(page.locator("#panel")).to_contain_text(text)
                    assert cut(page) == []
                    said = page.locator("body").inner_text()
                    assert re.findall(r"\b1 (?:row|update|part|transaction|delete|item)s\b", said) == []
                    assert "+00:00" not in said
                    expect(page.locator("#summary .moment")).to_have_text("2026-09-21T14:13:19Z 1 s ago")


def test_an_empty_environment_says_what_to_do(browser: Browser) -> None:
    """Damage: the first thing that a new user sees is a blank page."""
    with shown(Shown(Hands())) as console:
        console.watch.look()
        with page_of(browser, 360) as page:
            page.goto(console.url)
            expect(page.locator("#graph")).to_contain_text("Nothing is defined here yet.")
            expect(page.locator("#panel h2")).to_have_text("An empty environment")
            assert overflow(page) <= 0


def test_a_process_that_ends_is_noticed(browser: Browser) -> None:
    """Damage: the page stays green after the process was killed."""
    context = browser.new_context()
    page = context.new_page()
    with shown(figures_of(Hands())) as console:
        console.watch.look()
        page.goto(console.url)
        expect(page.locator("#connection")).to_contain_text("as of 2026-09-21T14:13:20Z")
    expect(page.locator("#connection")).to_contain_text("no answer", timeout=PATIENCE_MS)
    expect(page.locator("#connection")).to_have_class("lost")
    context.close()


def test_the_token_is_given_in_a_form(browser: Browser) -> None:
    """Damage: a console with a token can be read by a scraper and by no person."""
    with shown(figures_of(Hands()), Door(service.ANYWHERE, Secret("correct horse"))) as console:
        console.watch.look()
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(console.url)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the token of this environment.")
        page.get_by_label("Token").fill("correct horse")
        page.keyboard.press("Enter")
        expect(page.locator(".node")).to_have_count(14)
        assert "correct" not in page.url
        assert page.evaluate("document.cookie") == ""
        context.close()


def test_no_other_page_may_embed_it(browser: Browser, hour: Console) -> None:
    """Damage: a page lays the console under its own buttons, and reads where its visitor clicks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f'<iframe src="{hour.url}/" width="800" height="600"></iframe>'.encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()  # noqa: TID251 - a server of a test
        context = browser.new_context()
        page = context.new_page()
        refused: list[str] = []
        page.on("console", lambda message: refused.append(message.text))
        with page.expect_console_message(lambda message: "frame" in message.text, timeout=PATIENCE_MS):
            page.goto(f"http://127.0.0.1:{server.server_port}/")
        assert [frame for frame in page.frames if frame.url.startswith(hour.url)] == []
        assert any("frame" in text for text in refused), refused
        context.close()
        server.shutdown()


def test_pictures_for_the_docs(browser: Browser, hour: Console, tmp_path: Path) -> None:
    """Damage: the docs show no picture, or each clone carries megabytes of them."""
    wanted = {"console": ("light", ""), "console-view": ("dark", "#sessions")}
    place = IMAGES if os.environ.get("STRANDLINE_SCREENSHOTS") else tmp_path
    for name, (scheme, chosen) in wanted.items():
        with page_of(browser, 1180, 720, scheme) as page:
            page.goto(f"{hour.url}/{chosen}")
            expect(page.locator(".plot").first).to_be_visible()
            page.screenshot(path=place / f"{name}.png")
    sizes = {path.stem: path.stat().st_size for folder in (place, IMAGES) for path in folder.glob("console*.png")}
    assert sizes.keys() == wanted.keys()
    assert max(sizes.values()) <= IMAGE_BYTES_MAX
