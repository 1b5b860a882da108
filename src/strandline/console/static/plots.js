// Plots: the last hour of a figure, as lines.
import { bytes, h, many, minute, s, second, span } from "/elements.js";

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

export function plots(found, kind) {
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
