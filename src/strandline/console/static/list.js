// The list of all items, the worst first: what a graph of hundreds cannot tell, and what was looked for.
import { $, HEALTHS, bytes, count, h, lagOf, link, many, place, span, word } from "/elements.js";

const rows = new Map(); // by name: {text, row}
let body = null;

function freshness(item) {
  const { first } = item;
  if (first) return `${many(first.rows)}${first.about ? ` of about ${many(first.about)}` : ""} rows so far`;
  const lag = lagOf(item);
  return lag === null ? "–" : span(lag);
}

function row(item) {
  const cells = [item.kind, item.health, freshness(item), item.rows === undefined ? "–" : many(item.rows), item.bytes === undefined ? "–" : bytes(item.bytes)];
  const text = JSON.stringify([...cells, item.errors]);
  const known = rows.get(item.name);
  if (known && known.text === text) return known.row;
  const [kind, health, ...figures] = cells;
  const wide = (value, more) => h("td", { class: `number ${more}` }, value);
  const made = h("tr", {}, h("td", {}, link(item.name)), h("td", { class: "wide" }, kind), h("td", {}, word(health), item.errors ? h("small", {}, count(item.errors, "error")) : null),
    wide(figures[0], ""), wide(figures[1], "wide"), wide(figures[2], "wide"));
  if (known) {
    const focused = known.row.contains(document.activeElement);
    known.row.replaceWith(made);
    if (focused) made.querySelector("a").focus({ preventScroll: true });
  }
  rows.set(item.name, { text, row: made });
  return made;
}

export function list(items, chosen, wanted) {
  if (!items.length) return void $("all").replaceChildren();
  if (!body || !$("all").contains(body)) {
    const heads = [["item", ""], ["kind", "wide"], ["health", ""], ["freshness", "number"], ["rows", "number wide"], ["size", "number wide"]];
    body = h("tbody", {});
    $("all").replaceChildren(h("h2", {}), h("table", {}, h("thead", {}, h("tr", {}, heads.map(([text, how]) => h("th", { scope: "col", class: how || null }, text)))), body));
  }
  const shown = items.filter((item) => !wanted || wanted.has(item.name));
  const worst = [...shown].sort((one, other) => HEALTHS.indexOf(other.health) - HEALTHS.indexOf(one.health));
  $("all").querySelector("h2").textContent = wanted ? `${many(shown.length)} of ${count(items.length, "item")}` : count(items.length, "item");
  place(body, worst.map((item) => {
    const made = row(item);
    made.classList.toggle("chosen", item.name === chosen);
    return made;
  }));
  const there = new Set(items.map((item) => item.name));
  for (const name of rows.keys()) if (!there.has(name)) rows.delete(name);
}
