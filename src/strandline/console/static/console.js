// The console: asks the process every two seconds how everything is, and draws it.  It changes nothing.
// Names and texts come from others: they reach the page as text nodes only, never as markup.
"use strict";

const LOOK_MS = 2000;
const NODE = { width: 184, height: 54, thin: 4, across: 48, down: 14, margin: 20 };
const HEALTHS = ["fresh", "waiting", "beginning", "late", "stale", "broken"];
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

let seen = null; // the environment as it was seen last
let chosen = null; // the name of the item that is chosen; null: the environment itself
let shape = ""; // what the graph was drawn of
const nodes = new Map(); // by name: its button
const edges = []; // {from, to, path}
const rates = new Map(); // by materialization: how many rows a second its endpoint takes

// ---- elements -------------------------------------------------------------------------------------------------------

function h(tag, how, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(how || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function s(tag, how, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(how)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const named = (name) => h("span", { class: "name", title: name }, name);
const link = (name) => h("a", { href: `#${encodeURIComponent(name)}` }, named(name));

const iso = (text) => text.replace("+00:00", "Z");
const moment = (text) => h("span", { class: "moment" }, text ? iso(text) : "–");

function table(heads, rows) {
  const cell = (tag, value) => h(tag, { class: typeof value === "number" ? "number" : null }, typeof value === "number" ? many(value) : value ?? "");
  const first = rows[0] || [];
  const head = heads.map((text, at) => h("th", { scope: "col", class: typeof first[at] === "number" ? "number" : null }, text));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => cell("td", value)))))));
}

// ---- how numbers are written ----------------------------------------------------------------------------------------

function many(value) {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1e6) return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(value);
  return new Intl.NumberFormat("en", { maximumFractionDigits: Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0 }).format(value);
}

const short = (value) => (value < 10000 ? many(value) : new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value));

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3600), Math.floor(seconds / 86400)];
  if (hours < 1) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return days < 2 ? `${hours} h ${minutes % 60} min` : `${days} days`;
}

const lagOf = (item) => (item.lag && item.lag.ms !== null ? item.lag.ms / 1000 : null);
const second = (ms) => new Date(ms).toISOString().slice(11, 19); // UTC, as all times here
const minute = (ms) => new Date(ms).toISOString().slice(11, 16);

// ---- the graph ------------------------------------------------------------------------------------------------------

// In layers: each item stands right of all that it reads, and as near to its readers as that allows.  A line that
// crosses a layer has a narrow place of its own there, so it runs behind no item.  A few sweeps of means order each layer.
function layered(items) {
  const known = new Map(items.map((item) => [item.name, item]));
  const reads = (name) => known.get(name).reads.filter((each) => known.has(each));
  const readers = new Map(items.map((item) => [item.name, []]));
  for (const item of items) for (const each of reads(item.name)) readers.get(each).push(item.name);
  const depth = new Map();
  const deep = (name, under) => {
    if (depth.has(name)) return depth.get(name);
    if (under.has(name)) return 0;
    under.add(name);
    const found = Math.max(-1, ...reads(name).map((each) => deep(each, under))) + 1;
    under.delete(name);
    depth.set(name, found);
    return found;
  };
  for (const item of items) deep(item.name, new Set());
  for (const item of [...items].sort((one, other) => depth.get(other.name) - depth.get(one.name))) {
    const right = readers.get(item.name).map((each) => depth.get(each));
    if (right.length) depth.set(item.name, Math.max(depth.get(item.name), Math.min(...right) - 1));
  }
  const layers = [];
  const put = (across, place) => { (layers[across] ||= []).push(place); return place; };
  const places = new Map(items.map((item) => [item.name, put(depth.get(item.name), { item, left: [], right: [], height: NODE.height })]));
  const lines = [];
  for (const item of items) {
    for (const each of reads(item.name)) {
      const way = [places.get(each)];
      for (let across = depth.get(each) + 1; across < depth.get(item.name); across++) way.push(put(across, { left: [], right: [], height: NODE.thin }));
      way.push(places.get(item.name));
      way.slice(1).forEach((place, at) => { place.left.push(way[at]); way[at].right.push(place); });
      lines.push({ from: each, to: item.name, way });
    }
  }
  const settle = (layer) => {
    const below = (place) => (place.item ? NODE.down : NODE.down / 2);
    const whole = layer.reduce((sum, place) => sum + place.height + below(place), -NODE.down);
    layer.reduce((y, place) => { place.y = y; return y + place.height + below(place); }, -whole / 2);
    return whole;
  };
  layers.forEach(settle);
  const middle = (place) => place.y + place.height / 2;
  for (let sweep = 0; sweep < 8; sweep++) {
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      for (const place of layer) {
        const near = sweep % 2 ? place.right : place.left;
        place.mean = near.length ? near.reduce((sum, each) => sum + middle(each), 0) / near.length : middle(place);
      }
      layer.sort((one, other) => one.mean - other.mean);
      settle(layer);
    }
  }
  return { layers, lines, tallest: Math.max(...layers.map(settle)) };
}

function draw(items) {
  const inGraph = items.filter((item) => item.kind !== "instance");
  const now = JSON.stringify(inGraph.map((item) => [item.name, item.kind, item.reads]));
  if (now === shape) return;
  shape = now;
  nodes.clear();
  edges.length = 0;
  if (!inGraph.length) {
    $("graph").replaceChildren(h("div", { class: "empty" }, h("p", {}, "Nothing is defined here yet."), h("code", {}, "CREATE TABLE notes (id INT, text STRING)")));
    return;
  }
  const { layers, lines, tallest } = layered(inGraph);
  const width = layers.length * (NODE.width + NODE.across) - NODE.across + 2 * NODE.margin;
  const height = tallest + 2 * NODE.margin;
  const sheet = h("div", { class: "sheet" });
  const drawing = s("svg", { width, height, "aria-hidden": "true" });
  sheet.style.width = `${width}px`;
  sheet.style.height = `${height}px`;
  sheet.append(drawing);
  layers.forEach((layer, across) => {
    for (const place of layer) {
      place.x = NODE.margin + across * (NODE.width + NODE.across);
      place.y += height / 2;
    }
    layer.filter((place) => place.item).forEach((place, down) => {
      const button = h("button", { class: "node", type: "button", "aria-pressed": "false", onclick: () => choose(place.item.name) });
      button.style.left = `${place.x}px`;
      button.style.top = `${place.y}px`;
      button.dataset.across = across;
      button.dataset.down = down;
      nodes.set(place.item.name, button);
      sheet.append(button);
    });
  });
  for (const { from, to, way } of lines) {
    const bend = NODE.across / 2;
    let d = "";
    way.slice(1).forEach((place, at) => {
      const [x, y, toX, toY] = [way[at].x + NODE.width, way[at].y + way[at].height / 2, place.x, place.y + place.height / 2];
      d += `${at ? `H${x}` : `M${x} ${y}`}C${x + bend} ${y} ${toX - bend} ${toY} ${toX} ${toY}`;
    });
    const path = s("path", { d });
    drawing.append(path);
    edges.push({ from, to, path });
  }
  $("graph").replaceChildren(sheet);
  $("graph").scrollTop = (height - $("graph").clientHeight) / 2; // the layers stand around the middle
  reveal();
}

// Brings the item that is chosen into sight, in the graph alone: the page stays where it is.
function reveal() {
  const [box, node] = [$("graph"), nodes.get(chosen)];
  if (!node) return;
  const [left, top, room] = [parseFloat(node.style.left), parseFloat(node.style.top), NODE.margin];
  if (left < box.scrollLeft || left + NODE.width > box.scrollLeft + box.clientWidth) box.scrollLeft = left - room;
  if (top < box.scrollTop || top + NODE.height > box.scrollTop + box.clientHeight) box.scrollTop = top - room;
}

function brief(item) {
  const parts = [item.kind];
  if (item.phase && item.phase !== "following") parts.push(item.phase.toLowerCase());
  const lag = lagOf(item);
  if (lag !== null) parts.push(span(lag));
  if (item.rows !== undefined) parts.push(`${short(item.rows)} rows`);
  return parts.join(" · ");
}

function paint(items) {
  const wanted = $("filter").value.trim().toLowerCase();
  const fits = (item) => !wanted || [item.name, item.kind, item.health].some((text) => text.toLowerCase().includes(wanted));
  const by = new Map(items.map((item) => [item.name, item]));
  for (const [name, button] of nodes) {
    const item = by.get(name);
    const text = brief(item);
    const label = `${name}, ${text}, ${item.health}${item.errors ? `, ${item.errors} errors` : ""}`;
    button.className = `node ${item.health}${fits(item) ? "" : " dim"}`;
    button.setAttribute("aria-pressed", String(name === chosen));
    if (button.title === label) continue;
    button.title = label;
    button.setAttribute("aria-label", label);
    button.replaceChildren(h("span", { class: "dot" }), named(name), item.errors ? h("span", { class: "count" }, many(item.errors)) : h("span"), h("small", {}, text));
  }
  for (const { from, to, path } of edges) {
    const near = chosen !== null && (from === chosen || to === chosen);
    const ill = by.get(from).health === "broken";
    path.setAttribute("class", `${near ? "near " : ""}${ill ? "ill " : ""}${fits(by.get(from)) || fits(by.get(to)) ? "" : "dim"}`);
  }
  const counts = HEALTHS.map((health) => [health, items.filter((item) => item.health === health).length]).filter(([, count]) => count);
  $("legend").replaceChildren(...counts.map(([health, count]) => h("li", { class: health }, h("span", { class: "dot" }), `${count} ${health}`)));
}

// Arrow keys go from an item to its neighbours: left and right between layers, up and down in one.
function walk(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const here = document.activeElement;
  if (!step || !here.classList.contains("node")) return;
  event.preventDefault();
  const [across, down] = [Number(here.dataset.across) + step[0], Number(here.dataset.down) + step[1]];
  const layer = [...nodes.values()].filter((node) => Number(node.dataset.across) === across);
  const top = (node) => Math.abs(parseFloat(node.style.top) - parseFloat(here.style.top));
  const next = step[0] ? layer.sort((a, b) => top(a) - top(b))[0] : layer.find((node) => Number(node.dataset.down) === down);
  if (next) next.focus();
}

// ---- plots ----------------------------------------------------------------------------------------------------------

function rate(times, values) {
  return values.map((value, at) => {
    const before = at ? values[at - 1] : null;
    if (value === null || before === null || value < before) return null;
    return (value - before) / Math.max(0.001, (times[at] - times[at - 1]) / 1000);
  });
}

function plot(title, times, values, write) {
  const known = values.filter((value) => value !== null);
  const last = known.length ? known[known.length - 1] : null;
  const top = Math.max(...known, 0) || 1;
  const [begin, end] = [times[0] ?? 0, times[times.length - 1] ?? 1];
  const x = (time) => (end > begin ? (1000 * (time - begin)) / (end - begin) : 1000);
  const y = (value) => 70 - (66 * value) / top;
  const runs = [];
  let run = [];
  times.forEach((time, at) => {
    if (values[at] === null) { if (run.length) runs.push(run); run = []; } else run.push([x(time), y(values[at])]);
  });
  if (run.length) runs.push(run);
  const svg = s("svg", { viewBox: "0 0 1000 72", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: now ${write(last)}, at most ${write(known.length ? top : null)} in the last hour` });
  svg.append(s("path", { class: "base", d: "M0 70H1000" }));
  for (const points of runs) {
    const line = points.length > 1 ? points.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L") : `${points[0][0] - 4} ${points[0][1]}L${points[0][0]} ${points[0][1]}`;
    svg.append(s("path", { class: "area", d: `M${line}L${points[points.length - 1][0]} 70L${points[0][0]} 70Z` }), s("path", { class: "line", d: `M${line}` }));
  }
  const mark = s("path", { class: "mark", d: "M0 0V70" });
  svg.append(mark);
  const shown = h("b", {}, write(last));
  const ends = [h("span", {}, times.length ? minute(begin) : ""), h("span", {}, known.length ? `max ${write(Math.max(...known))}` : "nothing known yet"), h("span", {}, times.length ? minute(end) : "")];
  svg.addEventListener("pointermove", (event) => {
    if (!times.length) return;
    const box = svg.getBoundingClientRect();
    const time = begin + ((event.clientX - box.left) / box.width) * (end - begin);
    const at = times.reduce((best, each, index) => (Math.abs(each - time) < Math.abs(times[best] - time) ? index : best), 0);
    mark.setAttribute("d", `M${x(times[at])} 0V70`);
    mark.style.visibility = "visible";
    shown.textContent = `${second(times[at])}  ${write(values[at])}`;
  });
  svg.addEventListener("pointerleave", () => {
    mark.style.visibility = "hidden";
    shown.textContent = write(last);
  });
  return h("figure", { class: "plot" }, h("figcaption", {}, title, shown), svg, h("div", { class: "ends" }, ends));
}

function plots(found, kind) {
  const { times, series } = found;
  const perSecond = (value) => (value === null ? "–" : `${many(value)}/s`);
  const doing = { source: "Records made durable", "source table": "Records made durable", view: "Updates written", materialization: "Rows acknowledged" }[kind];
  const kinds = [
    ["freshness", "Freshness", (values) => values, span],
    ["tick", "Tick", (values) => values, span],
    ["rows", "Rows", (values) => values, many],
    ["done", doing, (values) => rate(times, values), perSecond],
    ["statements", "Statements", (values) => rate(times, values), perSecond],
    ["behind", "Behind upstream", (values) => values, many],
    ["step", "Last step", (values) => values, span],
    ["errors", "Errors", (values) => values, many],
    ["bytes", "Size", (values) => values, bytes],
  ];
  const drawn = kinds.filter(([field, title]) => title && series[field] && series[field].some((value) => value !== null));
  return drawn.map(([field, title, of, write]) => plot(title, times, of(series[field]), write));
}

// ---- the panel ------------------------------------------------------------------------------------------------------

const drawnOf = new Map(); // by card: what it was drawn of, so that nothing is drawn anew that did not change

function card(id, of, make) {
  const text = JSON.stringify(of);
  const there = document.querySelector(`[data-card="${id}"]`);
  if (there && drawnOf.get(id) === text) return there;
  const children = make().filter((child) => child !== null && child !== undefined && child !== false);
  drawnOf.set(id, text);
  if (!children.length) return null;
  const made = h("section", { class: "card", "data-card": id }, children);
  const [before, after] = [there ? [...there.querySelectorAll("pre, details")] : [], [...made.querySelectorAll("pre, details")]];
  before.forEach((old, at) => { // what a person has opened or scrolled stays so
    if (!after[at]) return;
    if (old.open) after[at].open = true;
    requestAnimationFrame(() => { after[at].scrollTop = old.scrollTop; });
  });
  return made;
}

function show(cards) {
  const wanted = cards.filter(Boolean);
  const panel = $("panel");
  const there = [...panel.children];
  if (wanted.length === there.length && wanted.every((each, at) => each === there[at])) return;
  panel.replaceChildren(...wanted);
}

const fact = (title, value, below) => (value === undefined || value === null ? null : h("div", {}, h("dt", {}, title), h("dd", {}, value, below ? h("small", {}, iso(below)) : null)));
const said = (health, text) => h("p", { class: `said ${health}` }, text);

function facts(item) {
  const lag = lagOf(item);
  const first = item.first;
  const about = first && first.about ? ` of about ${many(first.about)}` : "";
  const held = ["source", "source table"].includes(item.kind) && item.lag ? item.lag[item.unit] : null;
  return h("dl", { class: "facts" }, [
    lag === null ? null : fact("Freshness", span(lag)),
    item.upper === undefined ? null : fact("Upper", item.upper === null ? "closed" : String(item.upper), item.upper_at),
    item.since === undefined || item.since === null ? null : fact("Since", String(item.since), item.since_at),
    item.rows === undefined ? null : fact("Rows", many(item.rows)),
    item.errors ? fact("Errors", many(item.errors)) : null,
    item.bytes === undefined ? null : fact("Size", bytes(item.bytes), `${many(item.updates)} updates in ${many(item.parts)} parts`),
    held === null || held === undefined ? null : fact("Behind upstream", `${many(held)} ${item.unit}`),
    first ? fact(item.phase === "hydrating" ? "First result" : "First load", `${many(first.rows)}${about} rows`, first.ms === null ? null : `for ${span(first.ms / 1000)}`) : null,
    item.step ? fact("Last step", span(item.step.ms / 1000), `${many(item.step.updates)} updates read`) : null,
    item.transactions === undefined ? null : fact("Phase", item.phase, `${many(item.transactions)} transactions`),
    item.rows_stored === undefined ? null : fact("Acknowledged", `${many(item.rows_stored)} rows`, `${many(item.rows_deleted)} deletes`),
    item.moving && item.moving.read ? fact("Under way", `${many(item.moving.sent)} rows sent`, `${many(item.moving.read)} of about ${many(item.moving.about)} read`) : null,
    item.index && item.index.memory !== undefined ? fact("Look-ups", many(item.index.memory), `${many(item.index.scanned)} by a scan`) : null,
    item.holders === undefined ? null : fact("Holders", many(item.holders)),
    item.instance ? fact("Instance", named(item.instance)) : null,
  ].filter(Boolean));
}

function showItem(found) {
  const { item, described, errors } = found;
  const plan = described && described.plan;
  show([
    card("item", [item], () => [
      h("div", { class: "head" }, h("h2", { class: item.name.length > 60 ? "long" : null }, named(item.name)), h("button", { type: "button", onclick: () => choose(null) }, "Overview")),
      h("div", { class: "sub" }, h("span", {}, item.kind), h("span", { class: `word ${item.health}` }, h("span", { class: "dot" }), item.health), item.refresh ? h("span", {}, `refresh ${item.refresh}`) : null),
      item.problem ? said("broken", item.problem) : null,
      ...(item.waiting ? [said("waiting", item.waiting)] : []),
      ...item.notices.map((notice) => said("fresh", notice)),
      facts(item),
    ]),
    errors.rows ? card("errors", [errors], () => [
      h("h3", {}, `${many(errors.rows)} rows with errors, since ${errors.since_at || errors.since}`),
      h("ol", {}, errors.first.map((row, at) => h("li", { class: "broken" }, said("broken", (errors.told || [])[at] || ""), h("details", {}, h("summary", {}, "the row as it is kept"), h("pre", {}, JSON.stringify(row, null, 2)))))),
      errors.rows > errors.first.length ? h("p", { class: "sub" }, `and ${many(errors.rows - errors.first.length)} more`) : null,
    ]) : null,
    item.replicas ? card("replicas", [item.replicas], () => [h("h3", {}, "Replicas"), replicas([item])]) : null,
    card("plots", [item.name, found.times, found.series], () => {
      const drawn = plots(found, item.kind);
      return drawn.length ? [h("h3", {}, "The last hour"), h("div", { class: "plots" }, drawn)] : [];
    }),
    described ? card("reads", [item.reads, described.read_by], () => [
      ...(item.reads.length ? [h("h3", {}, "Reads"), h("div", { class: "links" }, item.reads.map(link))] : []),
      ...(described.read_by.length ? [h("h3", {}, "Read by"), h("div", { class: "links" }, described.read_by.map(link))] : []),
    ]) : null,
    described ? card("definition", [described.definition, described.columns], () => [
      h("h3", {}, "Definition"), h("pre", { tabindex: "0" }, described.definition),
      ...(described.columns.length ? [h("h3", {}, "Columns"), table(["name", "type"], described.columns.map(([name, type]) => [named(name), type]))] : []),
    ]) : null,
    plan ? card("plan", [plan], () => [
      h("h3", {}, plan.incremental ? "Plan: every part is updated from changes" : "Plan: some part is computed anew"),
      ...plan.reasons.map((reason) => said("late", reason)),
      table(["stage", "rule", "last step"], plan.stages.map((stage) => [named(stage.name), stage.rule, stage.last_step ? `${span(stage.last_step.ms / 1000)}, ${many(stage.last_step.rows_read)} updates` : "–"])),
      h("details", {}, h("summary", {}, "all that is known of the plan"), h("pre", { tabindex: "0" }, plan.text)),
    ]) : null,
    described && described.holders.length ? card("holders", [described.holders], () => [
      h("h3", {}, "Holders: who keeps its past readable"),
      table(["name", "from", "last heard of"], described.holders.map((each) => [named(each.name), moment(each.since_at || String(each.since)), each.beat_at ? moment(each.beat_at) : "needs no lease"])),
    ]) : null,
  ]);
}

function replicas(instances) {
  const rows = instances.flatMap((item) => Object.entries(item.replicas || {}).map(([name, each]) => [
    h("a", { href: `#${encodeURIComponent(item.name)}` }, named(`${item.name} / ${name}`)),
    each.address,
    h("span", { class: `word ${each.obeys ? "fresh" : "broken"}` }, h("span", { class: "dot" }), each.obeys ? "connected" : each.problem || "it compares what it runs"),
    Object.keys(each.problems || {}).length || "",
  ]));
  return rows.length ? table(["replica", "address", "state", "problems"], rows) : h("p", { class: "sub" }, "It has no replicas: its items wait.");
}

function showEnvironment(found) {
  const items = seen.items;
  const ill = items.filter((item) => item.health !== "fresh");
  ill.sort((a, b) => HEALTHS.indexOf(b.health) - HEALTHS.indexOf(a.health));
  const tasks = items.filter((item) => item.kind === "materialization");
  const instances = items.filter((item) => item.kind === "instance");
  const others = Object.entries(seen.others);
  const why = (item) => item.problem || (item.errors ? `${many(item.errors)} rows with errors` : item.waiting || item.notices[0]) || (item.kind === "instance" ? "a replica is not connected" : lagOf(item) === null ? "nothing can be read yet" : `${span(lagOf(item))} behind`);
  show([
    card("attention", [ill.map((item) => [item.name, item.health, why(item)]), others, items.length], () => [
      h("h2", {}, ill.length || others.length ? "Needs a look" : items.length ? "All is fresh" : "An empty environment"),
      ...(ill.length ? [table(["item", "health", "why"], ill.slice(0, 50).map((item) => [link(item.name), h("span", { class: `word ${item.health}` }, h("span", { class: "dot" }), item.health), why(item)]))] : []),
      ...others.map(([name, problem]) => said("broken", `${name}: ${problem}`)),
      ill.length || others.length ? null : h("p", { class: "sub" }, items.length ? "Choose an item of the graph to see its figures." : "Create a table, a source or a view, and it appears here."),
    ]),
    card("environment", [found.times, found.series], () => {
      const drawn = plots(found, "");
      return drawn.length ? [h("h3", {}, "The last hour"), h("div", { class: "plots" }, drawn)] : [];
    }),
    tasks.length ? card("tasks", [tasks, [...rates]], () => [
      h("h3", {}, "Materializations"),
      table(["name", "phase", "complete before", "rows", "rows/s"], tasks.map((item) => [link(item.name), item.phase || "–", moment(item.upper_at), (item.rows_stored || 0) + (item.rows_deleted || 0), rates.get(item.name)?.now ?? NaN])),
    ]) : null,
    instances.length ? card("instances", [instances], () => [h("h3", {}, "Replicas"), replicas(instances)]) : null,
  ]);
}

// ---- going on -------------------------------------------------------------------------------------------------------

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
    ["Complete at", found.complete_at || "–"],
    ["Furthest behind", lags.length ? span(Math.max(...lags)) : "–"],
    ["Tick", found.tick_s === null ? "–" : span(found.tick_s)],
    ["Items", many(found.items.length)],
    ["Subscriptions", many(found.subscriptions)],
  ];
  $("summary").replaceChildren(...facts.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
  const ill = found.items.filter((item) => item.health === "broken").length;
  document.title = ill ? `(${ill}) Strandline` : "Strandline";
}

function learnRates(found) {
  for (const item of found.items) {
    if (item.rows_stored === undefined) continue;
    const [done, before] = [item.rows_stored + item.rows_deleted, rates.get(item.name)];
    const seconds = before ? (found.seen_ms - before.at) / 1000 : 0;
    if (!before || seconds > 0) rates.set(item.name, { done, at: found.seen_ms, now: before ? Math.max(0, (done - before.done) / seconds) : NaN });
  }
}

let asked = 0; // which question the last answer that counts belongs to

async function look() {
  const number = ++asked;
  try {
    const found = await ask("/api/environment");
    if (!found || number !== asked) return;
    if (!found.ready) return void ($("connection").textContent = "waiting for the first look …");
    seen = found;
    learnRates(found);
    if (chosen !== null && !found.items.some((item) => item.name === chosen)) chosen = null;
    draw(found.items);
    paint(found.items);
    summarize(found);
    const detail = await ask(`/api/item?name=${encodeURIComponent(chosen ?? "")}`);
    if (number !== asked || !detail) return;
    if (chosen === null) showEnvironment(detail);
    else showItem(detail);
    $("connection").className = "";
    $("connection").textContent = `as of ${found.seen_at}`;
  } catch (error) {
    if (number !== asked) return;
    $("connection").className = "lost";
    $("connection").textContent = `no answer (${error.message})${seen ? `; this is as of ${seen.seen_at}` : ""}`;
  }
}

function choose(name) {
  const hash = name === null ? "" : `#${encodeURIComponent(name)}`;
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname);
  chosen = name;
  if (seen) paint(seen.items);
  reveal();
  if (name !== null && matchMedia("(max-width: 1000px)").matches) $("panel").scrollIntoView();
  look();
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
  } else if (event.key === "Escape" && typing) {
    $("filter").value = "";
    $("filter").blur();
    if (seen) paint(seen.items);
  } else if (event.key === "Escape") choose(null);
  else walk(event);
});
$("filter").addEventListener("input", () => seen && paint(seen.items));
chosen = fromAddress();
(async function follow() {
  if (!document.hidden) await look();
  setTimeout(follow, LOOK_MS);
})();
document.addEventListener("visibilitychange", () => document.hidden || look());
