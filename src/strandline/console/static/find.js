// The search: what was typed is looked for in names, kinds and healths; arrow keys choose among the hits, Enter opens one.
import { $, count, h, many, named, word } from "/elements.js";

const HITS_MAX = 8;
let items = [];
let hits = [];
let active = 0;
let heard = {}; // {open(name), changed(), point(name)}

// Returns how well an item fits; 0: not at all.
function fit(item, text) {
  const name = item.name.toLowerCase();
  if (name === text) return 5;
  if (name.startsWith(text)) return 4;
  if (name.includes(text)) return 3;
  return item.kind.includes(text) || item.health.includes(text) ? 2 : 0;
}

const typed = () => $("filter").value.trim().toLowerCase();

// Returns the names that fit what was typed; null: nothing was.
export function wanted() {
  return typed() ? new Set(hits.map((item) => item.name)) : null;
}

export function among(all) {
  items = all;
  const was = hits[active]?.name;
  const text = typed();
  hits = text ? all.map((item) => [item, fit(item, text)]).filter(([, how]) => how).sort(([, one], [, other]) => other - one).map(([item]) => item) : [];
  active = Math.max(0, hits.findIndex((item) => item.name === was));
  if (!$("hits").hidden) listed();
}

function listed() {
  const box = $("hits");
  const open = typed() !== "" && document.activeElement === $("filter");
  box.hidden = !open;
  $("filter").setAttribute("aria-expanded", String(open));
  if (!open) return void $("filter").removeAttribute("aria-activedescendant");
  const from = Math.max(0, Math.min(active - HITS_MAX + 1, hits.length - HITS_MAX));
  const options = hits.slice(from, from + HITS_MAX).map((item, at) => h("div", {
    role: "option", id: `hit-${from + at}`, "aria-selected": String(from + at === active), class: "hit",
    onpointerdown: (event) => { event.preventDefault(); opened(item); },
  }, named(item.name), h("small", {}, item.kind), word(item.health)));
  const more = hits.length - options.length;
  const below = hits.length ? (more ? `${count(hits.length, "item")}; type more, or go on with the arrow keys` : "") : `No item has “${$("filter").value.trim()}” in its name, kind or health.`;
  box.replaceChildren(...options, ...(below ? [h("p", { class: "sub", role: "presentation" }, below)] : []));
  if (hits.length) $("filter").setAttribute("aria-activedescendant", `hit-${active}`);
  else $("filter").removeAttribute("aria-activedescendant");
}

function changed() {
  among(items);
  listed();
  heard.changed();
  if (hits.length) heard.point(hits[active].name);
}

function opened(item) {
  $("filter").value = "";
  $("filter").blur();
  changed();
  heard.open(item.name);
}

function pressed(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && hits.length) {
    active = (active + step + hits.length) % hits.length;
    listed();
    heard.point(hits[active].name);
  } else if (event.key === "Enter" && hits.length) opened(hits[active]);
  else if (event.key === "Escape") {
    $("filter").value = "";
    $("filter").blur();
    changed();
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

// `open`: a hit was opened; `changed`: others are wanted; `point`: a hit is to be in sight.
export function hear(how) {
  heard = how;
  $("filter").addEventListener("input", () => { active = 0; hits = []; changed(); });
  $("filter").addEventListener("keydown", pressed);
  $("filter").addEventListener("focus", listed);
  $("filter").addEventListener("blur", listed);
}
