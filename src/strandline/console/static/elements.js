// Elements of the page, and how names, numbers and times are written.
// Names and texts come from others: they reach the page as text nodes only, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const FOCUS = "a, button, summary, [tabindex]";
const COPIED_MS = 1500;
export const HEALTHS = ["fresh", "waiting", "beginning", "late", "stale", "broken"];
export const $ = (id) => document.getElementById(id);

export function h(tag, how, ...children) {
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

export function s(tag, how, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(how)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Makes `wanted` the children of an element, and leaves those where they are that stay: they keep focus and scroll.
export function place(parent, wanted) {
  const stays = new Set(wanted);
  for (const child of [...parent.childNodes]) if (!stays.has(child)) child.remove();
  let next = parent.firstChild;
  for (const each of wanted) {
    if (each === next) next = next.nextSibling;
    else parent.insertBefore(each, next);
  }
}

// Puts one element in the place of another: what was open, scrolled or in focus stays so.
export function replace(old, made) {
  const [was, is] = [old, made].map((each) => [...each.querySelectorAll("pre, details")]);
  const focus = [...old.querySelectorAll(FOCUS)].indexOf(document.activeElement);
  const scrolled = was.map((each) => each.scrollTop);
  was.forEach((each, at) => { if (is[at] && each.open) is[at].open = true; });
  old.replaceWith(made);
  was.forEach((each, at) => { if (is[at] && scrolled[at]) is[at].scrollTop = scrolled[at]; });
  if (focus >= 0) made.querySelectorAll(FOCUS)[focus]?.focus({ preventScroll: true });
}

// A name may break where its words end.
export function named(name) {
  const words = name.split(/(?<=[_./:-])(?=[^_./:-])/);
  return h("span", { class: "name", title: name }, words.flatMap((word, at) => (at ? [h("wbr"), word] : [word])));
}

export const link = (name) => h("a", { href: `#${encodeURIComponent(name)}` }, named(name));
export const dot = () => h("span", { class: "dot", "aria-hidden": "true" });
export const word = (health, text) => h("span", { class: `word ${health}` }, dot(), text ?? health);
export const said = (health, text) => h("p", { class: `said ${health}` }, dated(text));

export function table(heads, rows) {
  const number = (value) => typeof value === "number";
  const first = rows[0] || [];
  const head = heads.map((text, at) => h("th", { scope: "col", class: number(first[at]) ? "number" : null }, text));
  const cell = (value) => h("td", { class: number(value) ? "number" : null }, number(value) ? many(value) : value ?? "");
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

// A command to type; a button copies it where the browser lets it.
export function command(text) {
  const copy = h("button", { type: "button", class: "quiet", "aria-label": `Copy ${text}` }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, COPIED_MS);
  });
  return h("div", { class: "way" }, h("code", {}, text), navigator.clipboard ? copy : null);
}

// ---- numbers --------------------------------------------------------------------------------------------------------

const grouped = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function many(value) {
  if (!Number.isFinite(value)) return "–";
  return grouped[Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0].format(value);
}

// A count with its noun; `one` may be in the plural already, as the units of upstreams are.
export function count(value, one) {
  const noun = one.replace(/s$/, "");
  return `${many(value)} ${value === 1 ? noun : `${noun}s`}`;
}

export const short = (value) => (value < 10000 ? many(value) : compact.format(value));

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at && value < 100 ? value.toFixed(1) : many(Math.round(value))} ${units[at]}`;
}

// ---- times: all are UTC, as ISO dates, with their age beside them -----------------------------------------------------

const DATE = /(\d\d:\d\d:\d\d(?:\.\d+)?)\+00:00/g;
let now = 0; // when the environment was seen last

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
  if (hours < 1) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return days < 2 ? `${hours} h ${minutes % 60} min` : `${days} days`;
}

function ago(ms) {
  const seconds = Math.round((now - ms) / 1000);
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(Math.abs(seconds) / unit));
  const far = minutes < 1 ? `${Math.abs(seconds)} s` : hours < 1 ? `${minutes} min` : days < 2 ? `${hours} h` : `${days} days`;
  return seconds < 0 ? `in ${far}` : `${far} ago`;
}

// A time: `at` is its ISO date; without one, the number that no calendar has.
export function when(at, ms) {
  if (!at) return h("span", {}, ms === null || ms === undefined ? "–" : String(ms));
  const [day, clock] = at.split("T");
  return h("span", { class: "moment" }, h("time", { datetime: at }, h("span", {}, `${day}T`), h("wbr"), h("span", {}, clock)), " ", h("small", { "data-ms": String(ms) }, ago(ms)));
}

export function age(ms) {
  now = ms;
  for (const each of document.querySelectorAll("[data-ms]")) each.textContent = ago(Number(each.dataset.ms));
}

export const dated = (text) => text.replace(DATE, "$1Z");
export const second = (ms) => new Date(ms).toISOString().slice(11, 19);
export const minute = (ms) => new Date(ms).toISOString().slice(11, 16);
export const lagOf = (item) => (item.lag && item.lag.ms !== null ? item.lag.ms / 1000 : null);
