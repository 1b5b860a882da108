// The graph, whole in the width that there is.  Its items are cards, or names where these have no room, or dots where a
// thousand are to be seen at once; its layers are columns, or rows on a narrow page.
import { $, HEALTHS, count, dot, h, lagOf, many, named, place, s, short, span } from "/elements.js";
import { MARGIN, arranged, drawn, layered } from "/layout.js";

const FORMS = { // sizes in pixels; `tall`: of the least item; `screens`: so high may the graph be
  cards: { wide: [138, 220], tall: 54, gap: 12, step: [30, 72], turnedStep: 30, thin: 6, screens: 1 },
  names: { wide: [100, 180], tall: 30, gap: 8, step: [22, 60], turnedStep: 26, thin: 4, screens: 1.5 },
  dots: { wide: [24, 24], tall: 24, gap: 2, step: [28, 90], turnedStep: 26, thin: 0, screens: 1 },
};
const WAYS = [["cards", false], ["cards", true], ["names", false], ["names", true], ["names", true, true]]; // the last folds
const TALL_MIN = 420;
const AROUND = 180; // what else stands above and below the graph on a screen
const nodes = new Map(); // by name: its button
const spots = new Map(); // by name: its place
const edges = []; // {from, to, way, path}
let layers = [];
let drawing = null;
let shape = ""; // what the graph was drawn of
let form = "";
let open = () => {}; // what choosing an item does

export function draw(items, choose) {
  open = choose;
  const inGraph = items.filter((item) => item.kind !== "instance");
  const is = JSON.stringify(inGraph.map((item) => [item.name, item.kind, item.reads]));
  if (is === shape) return false;
  shape = is;
  nodes.clear();
  spots.clear();
  edges.length = 0;
  if (!inGraph.length) {
    $("graph").replaceChildren(h("div", { class: "empty" }, h("p", {}, "Nothing is defined here yet."), h("code", {}, "CREATE TABLE notes (id INT, text STRING)")));
    return true;
  }
  const found = layered(inGraph);
  layers = found.layers;
  drawing = s("svg", { "aria-hidden": "true" });
  const sheet = h("div", { class: "sheet" }, drawing);
  for (const layer of layers) {
    for (const spot of layer.filter((each) => each.item)) {
      const button = h("button", { type: "button", tabindex: "-1", onclick: () => open(spot.item.name) });
      nodes.set(spot.item.name, button);
      spots.set(spot.item.name, spot);
      sheet.append(button);
    }
  }
  for (const line of found.lines) {
    const path = s("path", {});
    drawing.append(path);
    edges.push({ ...line, path });
  }
  $("graph").replaceChildren(sheet);
  return true;
}

// ---- how it fits ----------------------------------------------------------------------------------------------------

// Chooses the first form in which all of the graph has room, the most telling one first, and puts each item in its place.
export function fit() {
  if (!nodes.size) return;
  const wide = $("graph").clientWidth;
  const tall = Math.max(TALL_MIN, innerHeight - AROUND);
  const fits = (found) => found && found.wide <= wide && found.tall <= tall * FORMS[found.name].screens;
  for (const [name, turned, folds] of WAYS) {
    const found = tried(name, turned, turned ? wide - 2 * MARGIN : Infinity, wide);
    if (fits(found) && (folds || !found.folded)) return settle(found);
  }
  for (let room = tall / 2; room < 4 * tall; room *= 1.2) {
    const found = tried("dots", false, room, wide);
    if (found.wide <= wide) return settle(found);
  }
  settle(tried("dots", true, wide - 2 * MARGIN, wide));
}

function tried(name, turned, room, wide) {
  const how = FORMS[name];
  const [least, most] = how.wide;
  const inside = wide - 2 * MARGIN;
  const counted = layers.map((layer) => layer.filter((spot) => spot.item).length);
  const longest = Math.max(...counted);
  let [each, step] = [most, how.turnedStep];
  if (turned) {
    const whole = Math.min(...layers.map((layer, at) => (inside - 2 * how.thin * (layer.length - counted[at])) / counted[at] - how.gap));
    const side = Math.max(1, Math.min(longest, Math.floor((inside + how.gap) / (least + how.gap))));
    each = Math.min(most, Math.floor(whole >= least ? whole : (inside + how.gap) / side - how.gap));
  } else if (name !== "dots") {
    const between = layers.length - 1;
    each = Math.min(most, Math.floor((inside - between * how.step[0]) / layers.length));
    step = between ? Math.min(how.step[1], Math.floor((inside - layers.length * each) / between)) : 0;
    if (each < least || longest * how.tall > how.screens * 2 * innerHeight) return null;
  } else step = how.step[0];
  const sheet = drawing.parentNode;
  sheet.className = `sheet ${name}`;
  sheet.style.setProperty("--wide", `${each}px`);
  const size = (spot) => {
    const high = name === "dots" ? how.tall : nodes.get(spot.item.name).offsetHeight;
    return turned ? [high, each] : [each, high];
  };
  const [long, across, folded] = arranged(layers, { size, room, gap: how.gap, step, thin: how.thin });
  const spare = wide - long;
  if (name === "dots" && !turned && spare > 0 && layers.length > 1) { // lanes are as near as can be; layers need not
    const wider = Math.min(how.step[1], step + spare / (layers.length - 1));
    const [again] = arranged(layers, { size, room, gap: how.gap, step: wider, thin: how.thin });
    return { name, turned, folded, wide: again, tall: across };
  }
  return turned ? { name, turned, folded, wide: across, tall: long } : { name, turned, folded, wide: long, tall: across };
}

function settle(found) {
  form = found.name;
  const sheet = drawing.parentNode;
  const left = Math.max(0, ($("graph").clientWidth - found.wide) / 2);
  sheet.style.width = `${found.wide}px`;
  sheet.style.height = `${found.tall}px`;
  sheet.style.marginLeft = `${left}px`;
  sheet.dataset.turned = String(found.turned);
  drawing.setAttribute("width", found.wide);
  drawing.setAttribute("height", found.tall);
  for (const [name, button] of nodes) {
    const spot = spots.get(name);
    const [x, y] = found.turned ? [spot.across, spot.along] : [spot.along, spot.across];
    button.style.left = `${x}px`;
    button.style.top = `${y}px`;
    spot.high = button.offsetHeight;
  }
  for (const { way, path } of edges) path.setAttribute("d", drawn(way, found.turned));
}

// ---- what it says ---------------------------------------------------------------------------------------------------

function figures(item) {
  const parts = [];
  if (item.rows !== undefined) parts.push(`${short(item.rows)} ${item.rows === 1 ? "row" : "rows"}`);
  if (item.phase && !["following", "Idle"].includes(item.phase)) parts.push(item.phase.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase());
  const lag = lagOf(item);
  if (lag !== null) parts.push(span(lag));
  return parts;
}

// Writes what is known of each item now.  `wanted`: those that were found, null: all.
export function paint(items, chosen, wanted) {
  const by = new Map(items.map((item) => [item.name, item]));
  const fits = (name) => !wanted || wanted.has(name);
  const here = document.activeElement;
  const first = nodes.has(chosen) ? chosen : nodes.keys().next().value;
  let moved = false;
  for (const [name, button] of nodes) {
    const item = by.get(name);
    const known = figures(item);
    const label = [name, item.kind, ...known, item.health, item.errors ? count(item.errors, "error") : ""].filter(Boolean).join(", ");
    button.className = `node ${item.health}${fits(name) ? "" : " dim"}`;
    button.setAttribute("aria-pressed", String(name === chosen));
    if (here === button || !nodes.has(here?.dataset?.name)) button.tabIndex = here === button || name === first ? 0 : -1;
    if (button.title === label) continue;
    button.dataset.name = name;
    button.title = label;
    button.setAttribute("aria-label", label);
    button.replaceChildren(dot(), named(name), item.errors ? h("span", { class: "count" }, short(item.errors)) : "", h("small", {}, h("span", { class: "kind" }, item.kind), known.map((text) => h("span", {}, text))));
    if (form === "cards" && button.offsetHeight !== spots.get(name).high) moved = true;
  }
  for (const { from, to, path } of edges) {
    const near = chosen !== null && (from === chosen || to === chosen);
    const ill = by.get(from).problem !== null;
    path.setAttribute("class", `${near ? "near " : ""}${ill ? "ill " : ""}${fits(from) || fits(to) ? "" : "dim"}`);
  }
  if (moved) fit();
  const counts = HEALTHS.map((health) => [health, items.filter((item) => item.health === health).length]).filter(([, found]) => found);
  place($("legend"), counts.map(([health, found]) => h("li", { class: health }, dot(), `${many(found)} ${health}`)));
}

// Brings an item into sight.
export function reveal(name) {
  nodes.get(name)?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// Arrow keys go from an item to the nearest one in their direction.
export function walk(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const here = document.activeElement;
  if (!step || !nodes.has(here?.dataset?.name)) return;
  event.preventDefault();
  const middle = (button) => [button.offsetLeft + button.offsetWidth / 2, button.offsetTop + button.offsetHeight / 2];
  const [x, y] = middle(here);
  const far = (button) => {
    const [dx, dy] = [middle(button)[0] - x, middle(button)[1] - y];
    const [ahead, aside] = [dx * step[0] + dy * step[1], Math.abs(dx * step[1]) + Math.abs(dy * step[0])];
    return ahead > 6 && ahead >= aside / 4 ? ahead + 2 * aside : Infinity;
  };
  const next = [...nodes.values()].reduce((best, each) => (far(each) < far(best) ? each : best), here);
  if (far(next) === Infinity) return;
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
