// The panel: what is chosen, or of the environment what needs a look, what runs, and its endpoints.
import { $, bytes, command, count, dated, h, lagOf, link, many, named, place, replace, said, span, table, when, word } from "/elements.js";
import { plots } from "/plots.js";

const NAMES_MAX = 6; // so many stand in a row of names at first
const GO_ON = ["waiting", "beginning"];
const drawnOf = new Map(); // by card: what it was drawn of, so that nothing is drawn anew that did not change
const rates = new Map(); // by materialization: how many rows a second its endpoint takes

function card(id, of, make) {
  const text = JSON.stringify(of);
  const there = document.querySelector(`[data-card="${id}"]`);
  if (there && drawnOf.get(id) === text) return there;
  const children = make().filter((child) => child !== null && child !== undefined && child !== false);
  drawnOf.set(id, text);
  if (!children.length) return null;
  const made = h("section", { class: "card", "data-card": id }, children);
  if (there) replace(there, made);
  return made;
}

const show = (cards) => place($("panel"), cards.filter(Boolean));
const fact = (title, value, below) => (value === undefined || value === null ? null : h("div", {}, h("dt", {}, title), h("dd", {}, value, below ? h("small", {}, below) : null)));

export function learn(found) {
  for (const item of found.items) {
    if (item.rows_stored === undefined) continue;
    const [done, before] = [item.rows_stored + item.rows_deleted, rates.get(item.name)];
    const seconds = before ? (found.seen_ms - before.at) / 1000 : 0;
    if (!before || seconds > 0) rates.set(item.name, { done, at: found.seen_ms, now: before ? Math.max(0, (done - before.done) / seconds) : NaN });
  }
}

// ---- reasons --------------------------------------------------------------------------------------------------------

function names(label, all, known) {
  if (!all.length) return null;
  const one = (name) => (known.has(name) ? link(name) : named(name));
  const rest = all.slice(NAMES_MAX);
  const more = rest.length ? h("details", {}, h("summary", {}, `and ${many(rest.length)} more`), h("div", { class: "links" }, rest.map(one))) : null;
  return h("div", { class: "links" }, label ? h("small", {}, label) : null, all.slice(0, NAMES_MAX).map(one), more);
}

// Commands, each followed by what it does; what several of them do is said once, after the last.
function ways(all) {
  const says = (way, at) => (way.does && way.does !== all[at + 1]?.does ? h("small", {}, way.does) : null);
  return all.length ? h("div", { class: "ways" }, all.flatMap((way, at) => [command(way.command), says(way, at)])) : null;
}

function reason(each, known, own) {
  const others = each.items.filter((name) => name !== own);
  const behind = own && !each.items.includes(own);
  const stopped = each.stops.filter((name) => name !== own);
  return h("li", { class: `reason ${each.health}` },
    h("p", {}, word(each.health), " ", behind ? "It is behind because another item stands still: " : null, dated(each.why)),
    names(behind ? "stands still:" : own ? "the same is said of" : null, others, known),
    names(`${behind ? "also stops" : "stops"} ${count(stopped.length, "item")}:`, stopped, known),
    ways(each.ways));
}

// ---- an item --------------------------------------------------------------------------------------------------------

function facts(item) {
  const lag = lagOf(item);
  const { first, moving } = item;
  const about = first && first.about ? ` of about ${many(first.about)}` : "";
  const held = ["source", "source table"].includes(item.kind) && item.lag ? item.lag[item.unit] : null;
  const time = (title, ms, at) => (ms === undefined || ms === null ? null : fact(title, when(at, ms), at ? String(ms) : null));
  const known = [
    lag === null ? null : fact("Freshness", span(lag)),
    item.upper === null && typeof item.since === "number" ? fact("Upper", "closed") : time("Upper", item.upper, item.upper_at),
    time("Since", item.since, item.since_at),
    item.rows === undefined ? null : fact("Rows", many(item.rows)),
    item.errors ? fact("Errors", many(item.errors)) : null,
    item.bytes === undefined ? null : fact("Size", bytes(item.bytes), `${count(item.updates, "update")} in ${count(item.parts, "part")}`),
    held === null || held === undefined ? null : fact("Behind upstream", count(held, item.unit)),
    first ? fact(item.phase === "hydrating" ? "First result" : "First load", `${many(first.rows)}${about} ${first.rows === 1 && !about ? "row" : "rows"}`, first.ms === null ? null : `for ${span(first.ms / 1000)}`) : null,
    item.step ? fact("Last step", span(item.step.ms / 1000), `${count(item.step.updates, "update")} read`) : null,
    item.transactions === undefined ? null : fact("Phase", item.phase, count(item.transactions, "transaction")),
    item.rows_stored === undefined ? null : fact("Acknowledged", count(item.rows_stored, "row"), count(item.rows_deleted, "delete")),
    moving && moving.read ? fact("Under way", `${count(moving.sent, "row")} sent`, `${many(moving.read)} of about ${many(moving.about)} read`) : null,
    item.index && item.index.memory !== undefined ? fact("Look-ups", many(item.index.memory), `${many(item.index.scanned)} by a scan`) : null,
    item.holders === undefined ? null : fact("Holders", many(item.holders)),
    item.instance ? fact("Instance", link(item.instance)) : null,
  ].filter(Boolean);
  return known.length ? h("dl", { class: "facts" }, known) : null;
}

const errorsOf = (errors) => card("errors", [errors], () => [
  h("h3", {}, `${count(errors.rows, "row")} with ${errors.rows === 1 ? "an error" : "errors"}, since `, when(errors.since_at, errors.since)),
  h("ol", {}, errors.first.map((row, at) => h("li", { class: "broken" }, said("broken", (errors.told || [])[at] || ""), h("details", {}, h("summary", {}, "the row as it is kept"), h("pre", { tabindex: "0" }, JSON.stringify(row, null, 2)))))),
  errors.rows > errors.first.length ? h("p", { class: "sub" }, `and ${many(errors.rows - errors.first.length)} more`) : null,
]);

function planOf(plan) {
  const stages = plan.stages.map((stage) => [named(stage.name), stage.rule, stage.last_step ? `${span(stage.last_step.ms / 1000)}, ${count(stage.last_step.rows_read, "update")}` : "–"]);
  return card("plan", [plan], () => [
    h("h3", {}, plan.incremental ? "Plan: every part is updated from changes" : "Plan: some part is computed anew"),
    ...plan.reasons.map((text) => said("late", text)),
    table(["stage", "rule", "last step"], stages),
    h("details", {}, h("summary", {}, "all that is known of the plan"), h("pre", { tabindex: "0" }, plan.text)),
  ]);
}

export function showItem(found, seen, choose) {
  const { item, described, errors } = found;
  const known = new Set(seen.items.map((each) => each.name));
  const told = new Set(found.reasons.map((each) => each.why));
  const plan = described && described.plan;
  show([
    card("item", [item, found.reasons], () => [
      h("div", { class: "head" }, h("h2", { class: item.name.length > 60 ? "long" : null, tabindex: "-1" }, named(item.name)), h("button", { type: "button", class: "quiet", onclick: () => choose(null) }, "Overview")),
      h("div", { class: "sub" }, h("span", {}, item.kind), word(item.health), item.refresh ? h("span", {}, `refresh ${item.refresh}`) : null),
      found.reasons.length ? h("ol", { class: "reasons" }, found.reasons.map((each) => reason(each, known, item.name))) : null,
      item.waiting && !told.has(item.waiting) ? said("waiting", item.waiting) : null,
      ...item.notices.map((notice) => said("fresh", notice)),
      ways(item.acknowledge),
      facts(item),
    ]),
    errors.rows ? errorsOf(errors) : null,
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
    plan ? planOf(plan) : null,
    described && described.holders.length ? card("holders", [described.holders], () => [
      h("h3", {}, "Holders: who keeps its past readable"),
      table(["name", "from", "last heard of"], described.holders.map((each) => [named(each.name), when(each.since_at, each.since), each.beat_at ? when(each.beat_at, each.beat_ms) : "needs no lease"])),
    ]) : null,
  ]);
}

// ---- the environment ------------------------------------------------------------------------------------------------

function replicas(instances) {
  const rows = instances.flatMap((item) => Object.entries(item.replicas || {}).map(([name, each]) => {
    const problems = Object.keys(each.problems || {}).length;
    return [
      h("div", {}, h("a", { href: `#${encodeURIComponent(item.name)}` }, named(`${item.name} / ${name}`)), h("small", {}, each.address)),
      h("div", {}, word(each.obeys ? "fresh" : "broken", each.obeys ? "connected" : each.problem || "it compares what it runs"), problems ? h("small", {}, count(problems, "problem")) : null),
    ];
  }));
  return rows.length ? table(["replica", "state"], rows) : h("p", { class: "sub" }, "It has no replicas: its items wait.");
}

function attention({ reasons, items }) {
  const known = new Set(items.map((each) => each.name));
  const look = reasons.filter((each) => !GO_ON.includes(each.health));
  const goOn = reasons.filter((each) => GO_ON.includes(each.health));
  const told = items.filter((each) => each.notices.length);
  const noticed = (each) => h("li", { class: "reason fresh" }, h("div", { class: "links" }, link(each.name)), ...each.notices.map((notice) => said("fresh", notice)), ways(each.acknowledge));
  const listed = (all) => h("ol", { class: "reasons" }, all.map((each) => reason(each, known, null)));
  return card("attention", [reasons, items.length, told.map((each) => [each.name, each.notices])], () => [
    h("h2", { tabindex: "-1" }, look.length ? "Needs a look" : !items.length ? "An empty environment" : goOn.length ? "Nothing needs a look" : "All is fresh"),
    look.length ? listed(look) : null,
    reasons.length ? null : h("p", { class: "sub" }, items.length ? "Choose an item of the graph to see its figures." : "Create a table, a source or a view, and it appears here."),
    goOn.length ? h("h3", {}, "Goes on by itself") : null,
    goOn.length ? listed(goOn) : null,
    told.length ? h("h3", {}, "Notices") : null,
    told.length ? h("ol", { class: "reasons" }, told.map(noticed)) : null,
  ]);
}

const queriesOf = (queries) => card("queries", [queries.map((each) => [each.number, each.stage])], () => [
  h("h3", {}, queries.length ? `Running queries: ${many(queries.length)}` : "No query runs"),
  queries.length ? h("ol", { class: "queries" }, queries.map((each) => h("li", {},
    h("p", {}, h("b", {}, String(each.number)), ` ${each.who}, since `, when(each.since_at, each.since), `: ${each.stage}`),
    h("pre", { tabindex: "0" }, each.text),
    command(each.cancel)))) : null,
  h("p", { class: "sub" }, queries.length ? "This page changes nothing: type the command in the project's directory." : "Queries stand here while they run, each with the command that cancels it."),
]);

export function showEnvironment(found, seen) {
  const tasks = seen.items.filter((item) => item.kind === "materialization");
  const instances = seen.items.filter((item) => item.kind === "instance");
  const states = tasks.map((item) => [item.name, item.phase, lagOf(item), (item.rows_stored || 0) + (item.rows_deleted || 0), rates.get(item.name)?.now ?? NaN]);
  show([
    attention(seen),
    queriesOf(seen.queries),
    card("environment", [found.times, found.series], () => {
      const drawn = plots(found, "");
      return drawn.length ? [h("h3", {}, "The last hour"), h("div", { class: "plots" }, drawn)] : [];
    }),
    tasks.length ? card("tasks", [states], () => [
      h("h3", {}, "Materializations"),
      table(["name", "behind", "rows", "rows/s"], states.map(([name, phase, lag, ...rows]) => [h("div", {}, link(name), h("small", {}, phase || "–")), span(lag), ...rows])),
    ]) : null,
    instances.length ? card("instances", [instances.map((item) => [item.name, item.replicas])], () => [h("h3", {}, "Replicas"), replicas(instances)]) : null,
  ]);
}
