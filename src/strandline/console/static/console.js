// The console: asks the process every two seconds how everything is, and shows it.  It changes nothing.
import { $, age, h, lagOf, many, span, when } from "/elements.js";
import { among, hear, wanted } from "/find.js";
import { draw, fit, paint, reveal, walk } from "/graph.js";
import { list } from "/list.js";
import { learn, showEnvironment, showItem } from "/panel.js";

const LOOK_MS = 2000;
const narrow = matchMedia("(max-width: 1000px)"); // as in the style: the panel stands below the graph
let seen = null; // the environment as it was seen last
let chosen = null; // the name of the item that is chosen; null: the environment itself
let shown = undefined; // what the panel shows
let follows = false; // the panel is to be looked at once it shows what is chosen
let asked = 0; // which question the last answer that counts belongs to

async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (answer.status === 401) location.assign("/login");
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

function summarize(found) {
  const lags = found.items.filter((item) => !item.refresh).map(lagOf).filter((lag) => lag !== null);
  const facts = [
    ["Complete at", when(found.complete_at, found.complete)],
    ["Furthest behind", lags.length ? span(Math.max(...lags)) : "–"],
    ["Tick", span(found.tick_s)],
    ["Items", many(found.items.length)],
    ["Queries", many(found.queries.length)],
    ["Subscriptions", many(found.subscriptions)],
  ];
  $("summary").replaceChildren(...facts.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
  const ill = found.items.filter((item) => item.health === "broken").length;
  document.title = ill ? `(${ill}) Strandline` : "Strandline";
}

function write() {
  among(seen.items);
  paint(seen.items, chosen, wanted());
  list(seen.items, chosen, wanted());
}

async function look() {
  const number = ++asked;
  try {
    const found = await ask("/api/environment");
    if (!found || number !== asked) return;
    if (!found.ready) return void ($("connection").textContent = "waiting for the first look …");
    seen = found;
    learn(found);
    if (chosen !== null && !found.items.some((item) => item.name === chosen)) chosen = null;
    const anew = draw(found.items, choose);
    write();
    if (anew) {
      fit();
      if (chosen !== null && !narrow.matches) reveal(chosen);
    }
    summarize(found);
    await inspect(number);
    if (number !== asked) return;
    $("connection").className = "";
    $("connection").textContent = `as of ${found.seen_at}`;
  } catch (error) {
    if (number === asked) lost(error);
  }
}

// Shows what is chosen.
async function inspect(number) {
  const detail = await ask(`/api/item?name=${encodeURIComponent(chosen ?? "")}`);
  if (number !== asked || !detail) return;
  if (chosen === null) showEnvironment(detail, seen);
  else showItem(detail, seen, choose);
  age(seen.seen_ms);
  arrived();
}

function lost(error) {
  $("connection").className = "lost";
  $("connection").textContent = `no answer (${error.message})${seen ? `; this is as of ${seen.seen_at}` : ""}`;
}

// The panel shows what was chosen: it begins at its top, and on a narrow page it is what is looked at.
function arrived() {
  if (shown === chosen) return;
  shown = chosen;
  $("panel").scrollTop = 0;
  if (!follows) return;
  follows = false;
  if (narrow.matches) $("panel").scrollIntoView();
  const here = document.activeElement;
  if (here === document.body || here === null) $("panel").querySelector("h2")?.focus({ preventScroll: true });
}

function choose(name) {
  const hash = name === null ? "" : `#${encodeURIComponent(name)}`;
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname);
  follows = name !== null && name !== shown;
  chosen = name;
  if (!seen) return void look();
  write();
  if (name !== null && !narrow.matches) reveal(name);
  inspect(++asked).catch(lost);
}

function fromAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || null;
  } catch {
    return null;
  }
}

addEventListener("hashchange", () => choose(fromAddress()));
addEventListener("popstate", () => choose(fromAddress()));
addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "Escape") choose(null);
  else walk(event);
});
hear({ open: choose, changed: () => seen && write(), point: (name) => narrow.matches || reveal(name) });
for (const kind of ["pointerover", "focusin"]) {
  $("graph").addEventListener(kind, (event) => { $("pointed").textContent = event.target.closest(".node")?.title ?? ""; });
}
new ResizeObserver(() => requestAnimationFrame(fit)).observe($("map"));
addEventListener("resize", () => requestAnimationFrame(fit));
chosen = fromAddress();
(async function follow() {
  if (!document.hidden) await look();
  setTimeout(follow, LOOK_MS);
})();
document.addEventListener("visibilitychange", () => document.hidden || look());
