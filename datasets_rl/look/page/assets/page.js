"use strict";
// The page of stored datasets. Its addresses are in the part after "#", so that a reload keeps the place:
//   #/                          overview
//   #/episodes/0?sort=return    the list of episodes of dataset 0
//   #/episode/0/7/1/3?t=20      episode 7 of dataset 0 beside episode 3 of dataset 1, at step 20
//   #/pairs                     what differs between two datasets, and the pairs of episodes that differ
//   #/pair/2?t=20               the two episodes of pair 2 on the same axes, at step 20

const report = JSON.parse(document.getElementById("report")?.textContent ?? "null");
const COLORS = 8;
const ELEMENTS = 12; // of a field, drawn at once
const CHUNK = 64; // rows that are read at once
const main = document.getElementById("main");
let overview;
let leave = [];

// ---------------------------------------------------------------------------------------------------- elements

function element(make, tag, attributes, children) {
  const made = make(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, one]) => made.style.setProperty(key, one));
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
const h = (tag, attributes, ...children) => element((name) => document.createElement(name), tag, attributes, children);
const s = (tag, attributes, ...children) =>
  element((name) => document.createElementNS("http://www.w3.org/2000/svg", name), tag, attributes, children);

// ---------------------------------------------------------------------------------------------------- numbers

const minus = (text) => text.replace(/^-/, "−").replace(/e-/, "e−");
function number(value, digits = 4) {
  if (value === null || value === undefined) return "not finite";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return minus(value.toLocaleString("en-US"));
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return minus(value.toExponential(2));
  return minus(value.toLocaleString("en-US", { maximumSignificantDigits: digits }));
}
function exact(value) {
  if (value === null) return "not finite";
  if (typeof value !== "number") return String(value);
  return minus(value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential() : String(value));
}
const plural = (count, unit) => `${number(count)} ${count === 1 ? unit : unit + "s"}`;
function bytes(size) {
  let unit = 0;
  while (size >= 999.5 && unit < 4) { size /= 1000; unit += 1; }
  return `${unit ? size.toPrecision(3) : size} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}
const percent = (part) => `${number(100 * part, 3)} %`;

function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// ---------------------------------------------------------------------------------------------------- data

const kept = new Map();
async function get(path, query = {}) {
  const words = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  if (report) {
    const address = path + (words.length ? "?" + words.map(([name, value]) => `${name}=${value}`).join("&") : "");
    const found = report.documents[address] ?? (/(episodes(\/\d+)?|pairs)$/.test(path) ? report.documents[path] : undefined);
    if (!found) throw new Error("This report does not have that; the live page has every episode.");
    return found;
  }
  const address = `data/${path}?${new URLSearchParams(words)}`;
  if (kept.has(address)) return kept.get(address);
  let response;
  try {
    response = await fetch(address);
  } catch {
    throw new Error("The server has ended. Start it again with the same command, and open the new address.");
  }
  const document = await response.json();
  if (!response.ok) throw new Error(document.error);
  kept.set(address, document);
  if (kept.size > 200) kept.delete(kept.keys().next().value);
  return document;
}

function frameAddress(dataset, episode, step, field) {
  const name = field.split("/").map(encodeURIComponent).join("/");
  if (!report) return { address: `frames/${dataset}/${episode}/${step}/${name}`, step };
  for (let at = step; at >= 0; at -= 1) {
    const address = report.frames[`${dataset}/${episode}/${at}/${field}`];
    if (address) return { address, step: at };
  }
  return null;
}

// ---------------------------------------------------------------------------------------------------- charts

/** A box that draws a chart again when its width changes. */
function responsive(draw) {
  const box = h("div", { class: "plot" });
  let width = 0;
  const observer = new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) { width = now; box.replaceChildren(draw(width)); }
  });
  observer.observe(box);
  leave.push(() => observer.disconnect());
  return box;
}

const color = (index) => `var(--c${index % COLORS})`;

/** A distribution; in that of a column of the list of episodes, a bar leads to the episodes that it counts. */
function histogramChart(panel, unit, field) {
  const used = panel.series.map((series, index) => ({ ...series, index })).filter((series) => series.of);
  const tip = h("div", { class: "tip", hidden: true });
  const only = used.length === 1 ? used[0] : null;
  const aside = only ? `mean ${number(only.mean)}` : "";
  const target = unit === "episodes" && !report ? (slot) => barAddress(panel, used, field, slot) : null;
  return h("div", { class: "chart" },
    h("div", { class: "chart-head" }, h("h3", { title: panel.label }, panel.label), h("span", { class: "quiet" }, aside)),
    used.length ? responsive((width) => drawHistogram(panel, used, unit, width, tip, target)) : h("p", { class: "quiet small" }, "no values"),
    tip,
    used.filter((series) => series.not_finite).map((series) =>
      h("p", { class: "small notice" }, `${plural(series.not_finite, "value")} not finite, not drawn`)));
}

/** The list of the episodes of a bar: of the first dataset that has any. */
function barAddress(panel, used, field, slot) {
  const series = used.find((one) => one.counts[slot]);
  if (!series) return null;
  if (!panel.edges) return address(`episodes/${series.index}`, { where: `${field} = ${panel.values[slot]}` });
  const [low, high] = panel.edges.slice(slot, slot + 2), last = slot === panel.edges.length - 2;
  return address(`episodes/${series.index}`, { where: `${field} >= ${low} and ${field} ${last ? "<=" : "<"} ${high}` });
}

/** The place of each bar on the axis, in pixels. Names lie at equal distances, numbers where they are on a linear axis. */
function barPlaces(panel, left, inner) {
  const count = panel.edges ? panel.edges.length - 1 : panel.values.length;
  const even = (slot) => left + (inner * slot) / count;
  if (panel.edges) {
    const low = panel.edges[0], span = panel.edges.at(-1) - low || 1;
    return { count, from: even, to: (slot) => even(slot + 1), at: (value) => left + (inner * (value - low)) / span };
  }
  if (panel.names || count === 1) return { count, from: even, to: (slot) => even(slot + 1), at: () => left + inner / 2 };
  const values = panel.values.map(Number), low = values[0], span = values.at(-1) - low;
  const nearest = Math.min(...values.slice(1).map((value, slot) => value - values[slot]));
  // A bar as wide as the distance of the nearest values, as far as it can be seen and does not fill the chart.
  const wide = Math.max(4, Math.min(64, (inner * nearest) / (span + nearest)));
  const at = (value) => left + wide / 2 + ((inner - wide) * (value - low)) / span;
  return { count, from: (slot) => at(values[slot]) - wide / 2, to: (slot) => at(values[slot]) + wide / 2, at };
}

function drawHistogram(panel, used, unit, width, tip, target) {
  const height = 132, left = 4, right = 4, top = 8, bottom = 22;
  const share = (series, slot) => series.counts[slot] / Math.max(1, series.of);
  const most = Math.max(...used.flatMap((series) => series.counts.map((_, slot) => share(series, slot))), 1e-12);
  const inner = width - left - right, base = height - bottom;
  const places = barPlaces(panel, left, inner), { count, from, to } = places;
  const center = (slot) => (from(slot) + to(slot)) / 2;
  const y = (part) => base - ((base - top) * part) / most;
  const marks = s("g", {});
  if (used.length === 1 || panel.values) {
    used.forEach((series, place) => series.counts.forEach((found, slot) => {
      if (!found) return;
      const room = to(slot) - from(slot), gap = panel.values ? Math.min(8, room / 5) : count > 60 ? 0 : 1;
      const each = Math.min((room - gap) / used.length, 64);
      const up = Math.min(y(share(series, slot)), base - 1);
      marks.append(s("rect", { x: center(slot) + each * (place - used.length / 2), y: up, width: Math.max(each, 1), height: base - up, rx: Math.min(1.5, each / 4), fill: color(series.index), "fill-opacity": 0.85 }));
    }));
  } else {
    used.forEach((series) => {
      let path = `M${from(0)},${base}`;
      series.counts.forEach((_, slot) => { path += `V${y(share(series, slot))}H${to(slot)}`; });
      marks.append(s("path", { d: path + `V${base}Z`, fill: color(series.index), "fill-opacity": used.length > 3 ? 0.06 : 0.2, stroke: color(series.index), "stroke-width": 1.4 }));
    });
  }
  const counted = (slot) => used.map((series) => `${percent(share(series, slot))}${used.length === 1 ? ` (${plural(series.counts[slot], unit.slice(0, -1))})` : ""}`).join(" · ");
  const range = (slot) => (panel.edges ? `${number(panel.edges[slot], 3)} to ${number(panel.edges[slot + 1], 3)}` : valueName(panel, slot));
  const show = (slot) => {
    tip.textContent = `${range(slot)}: ${counted(slot)}${target?.(slot) ? "; click to list them" : ""}`;
    tip.hidden = false;
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.max(half, Math.min(width - half, center(slot)))}px`;
  };
  const hide = () => { tip.hidden = true; };
  const links = target ? barLinks({ count, from, to, top, base, target, show, hide, label: (slot) => `${panel.label} ${range(slot)}: ${counted(slot)}` }) : null;
  const svg = s("svg", { width, height, role: target ? "group" : "img", "aria-label": `Distribution of ${panel.label}` }, marks,
    s("line", { class: "grid", x1: left, x2: width - right, y1: base + 0.5, y2: base + 0.5 }), axis(panel, width, places, base + 15), links);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    let slot = 0;
    for (let other = 1; other < count; other += 1) if (Math.abs(center(other) - event.offsetX) < Math.abs(center(slot) - event.offsetX)) slot = other;
    show(slot);
  });
  return svg;
}

/** Links over the whole height of the bars. The tab key reaches the first; arrows go from bar to bar. */
function barLinks({ count, from, to, top, base, target, show, hide, label }) {
  const links = [];
  for (let slot = 0; slot < count; slot += 1) {
    const href = target(slot);
    if (!href) continue;
    links.push(s("a", { class: "bar-link", href, tabindex: links.length ? -1 : 0, "aria-label": label(slot), onfocus: () => show(slot), onblur: hide },
      s("rect", { x: from(slot), y: top, width: Math.max(1, to(slot) - from(slot)), height: base - top })));
  }
  return s("g", { onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], place = links.indexOf(document.activeElement);
    if (!step || place < 0) return;
    event.preventDefault();
    event.stopPropagation();
    links[Math.max(0, Math.min(links.length - 1, place + step))].focus();
  } }, links);
}

const valueName = (panel, slot) => (panel.names ? panel.names[slot] || "empty text" : number(panel.values[slot]));

function axis(panel, width, { count, from, to, at }, y) {
  const group = s("g", { "aria-hidden": "true" });
  const write = (place, text, anchor = "middle") => group.append(s("text", { x: place, y, "text-anchor": anchor }, text));
  const centers = panel.values?.map((_, slot) => (from(slot) + to(slot)) / 2) ?? [];
  const short = (slot) => { const name = valueName(panel, slot); return name.length > 14 ? name.slice(0, 13) + "…" : name; };
  const needed = panel.values ? Math.max(...centers.map((_, slot) => short(slot).length)) * 6.6 + 6 : 0;
  const crowded = centers.some((place, slot) => slot && place - centers[slot - 1] < needed);
  if (panel.names || (panel.values && !crowded)) {
    const every = Math.max(1, Math.ceil(needed / (width / count)));
    centers.forEach((place, slot) => { if (slot % every === 0) write(place, short(slot)); });
    return group;
  }
  const ends = panel.edges ?? panel.values.map(Number);
  for (const tick of ticks(ends[0], ends.at(-1), Math.max(2, Math.floor(width / 90)))) {
    write(at(tick), number(tick), at(tick) < 20 ? "start" : at(tick) > width - 20 ? "end" : "middle");
  }
  return group;
}

/** The lines of a document of curves, one of each element. `final` is undefined where there is no value after the last action. */
function curveLines(curves, name, { length, unknown = false }) {
  return curves.labels.map((label, index) => ({
    label, text: label.slice(name.length), length, unknown, color: index, per: curves.steps_per_point, low: curves.low[index], high: curves.high?.[index], final: curves.final?.[index],
  }));
}

function pointsNote({ steps_per_point: per, stride }) {
  return per > 1 ? `each point: least and greatest of ${per} steps${stride > 1 ? `, every ${stride}th read` : ""}` : "";
}

/**
 * Lines over the steps 0 to T on the same axes; `time` holds the step under the cursor. `first` marks a step, and `runs` are steps that
 * are marked at the axis.
 */
function lineChart(lines, options) {
  const { time, title, note = "", compact = false } = options;
  const readouts = lines.map(() => h("b", {}));
  let redraw = () => {};
  const keys = lines.map((line, index) => h("span", { class: "key" },
    lines.length === 1 ? null : h("span", { class: "swatch", style: { background: color(line.color) } }), line.text, readouts[index]));
  const box = responsive((width) => { const drawn = drawCurves(lines, { ...options, width }); redraw = drawn.move; redraw(); return drawn.svg; });
  const update = () => {
    readouts.forEach((readout, index) => { readout.textContent = valueText(lines[index], time.clamp(options.length)); });
    redraw();
  };
  time.listen(update);
  update();
  return h("div", { class: "chart" },
    compact ? h("div", { class: "legend" }, title ? h("span", { class: "quiet" }, title) : null, keys)
      : [h("div", { class: "chart-head" }, h("h3", { title }, title), h("span", { class: "quiet" }, note)), box, h("div", { class: "legend" }, keys)],
    compact ? box : null);
}

function valueText(line, t) {
  if (t > line.length) return "–";
  if (t === line.length) return line.final === undefined ? (line.unknown ? "unknown" : "–") : number(line.final);
  const point = Math.floor(t / line.per);
  const low = line.low[point], high = (line.high ?? line.low)[point];
  return low === high ? number(low) : `${number(low)} to ${number(high)}`;
}

function drawCurves(lines, { length, time, width, height = 150, compact = false, discrete = false, first = null, runs = [] }) {
  const left = compact ? 38 : 46, right = 8, top = 8, bottom = compact ? 4 : 20;
  const all = lines.flatMap((line) => [...line.low, ...(line.high ?? []), line.final]).filter((value) => value !== null && value !== undefined);
  let low = Math.min(...extremes(all)), high = Math.max(...extremes(all));
  if (!Number.isFinite(low)) { low = 0; high = 1; }
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
  const inner = width - left - right, base = height - bottom;
  const x = (t) => left + (inner * t) / length;
  const y = (value) => base - ((base - top) * (value - low)) / (high - low);
  const svg = s("svg", { width, height, role: "img", "aria-label": `Curves of ${lines.map((line) => line.label).join(", ")}` });
  if (!compact) {
    const whole = all.every(Number.isInteger);
    for (const tick of ticks(low, high, 4).filter((one) => !whole || Number.isInteger(one))) {
      svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), s("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, number(tick, 3)));
    }
    for (const tick of ticks(0, length, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
      svg.append(s("text", { x: x(tick), y: base + 15, "text-anchor": "middle" }, number(tick)));
    }
  } else {
    for (const value of [low, high]) {
      svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }), s("text", { x: left - 5, y: y(value) + (value === low ? 2 : 7), "text-anchor": "end" }, number(value, 2)));
    }
  }
  for (const [from, to] of runs) svg.append(s("rect", { class: "differs", x: x(from), y: base + 1, width: Math.max(2, x(Math.min(to, length)) - x(from)), height: 3 }));
  if (first !== null) svg.append(s("line", { class: "first", x1: x(first), x2: x(first), y1: top - 4, y2: base + 4 }, s("title", {}, `the first difference, at step ${number(first)}`)));
  for (const line of lines) {
    const stroke = color(line.color), points = line.low, greatest = line.high ?? line.low;
    const at = (k) => x(Math.min(line.length, k * line.per));
    // Of several steps per point, the line goes through the least and the greatest value, so that single peaks stay sharp.
    const values = line.high ? points.flatMap((least, k) => [least, greatest[k]]) : points;
    const kind = `curve${line.high ? " dense" : ""}${line.over ? " over" : ""}`;
    svg.append(s("path", { class: kind, d: path(values, line.high ? (k) => at(k >> 1) : at, y, discrete && !line.high), stroke }));
    if (points.length === 1 && points[0] !== null) svg.append(s("circle", { cx: x(0), cy: y(points[0]), r: 2.5, fill: stroke }));
    if (line.final !== null && line.final !== undefined) {
      const last = greatest.at(-1);
      if (last !== null) svg.append(s("path", { class: "curve final-link", d: `M${x(Math.min(line.length, (points.length - 1) * line.per))},${y(last)}L${x(line.length)},${y(line.final)}`, stroke }));
      svg.append(s("circle", { class: "final", cx: x(line.length), cy: y(line.final), r: 3.4, stroke }, s("title", {}, "after the last action")));
    }
  }
  const cursor = s("line", { class: "cursor", y1: top - 4, y2: base });
  const dots = s("g", {});
  svg.append(cursor, dots);
  const seek = (event) => time.set(Math.round(((event.offsetX - left) / inner) * length));
  svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); seek(event); });
  svg.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
  const move = () => {
    const t = time.clamp(length);
    cursor.setAttribute("x1", x(t)); cursor.setAttribute("x2", x(t));
    dots.replaceChildren(...lines.flatMap((line) => {
      const point = Math.floor(t / line.per), low = line.low[point];
      const value = t === line.length ? line.final : t > line.length || low === null ? null : (low + (line.high ?? line.low)[point]) / 2;
      return value === null || value === undefined ? [] : [s("circle", { class: "dot", cx: x(t), cy: y(value), r: 3.5, fill: color(line.color) })];
    }));
  };
  return { svg, move };
}

function extremes(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}
/** The line through the values; that of discrete ones keeps each value until the next step. */
function path(values, x, y, discrete) {
  let text = "", gap = true;
  values.forEach((value, k) => {
    if (value === null) { gap = true; return; }
    text += `${gap ? "M" : discrete ? `H${x(k).toFixed(1)}L` : "L"}${x(k).toFixed(1)},${y(value).toFixed(1)}`;
    if (discrete && k === values.length - 1) text += `H${x(k + 1).toFixed(1)}`;
    gap = false;
  });
  return text;
}

// ---------------------------------------------------------------------------------------------------- overview

function legend() {
  if (overview.datasets.length === 1) return null;
  return h("div", { class: "legend" }, overview.datasets.map((dataset, index) =>
    h("span", { class: "key" }, h("span", { class: "swatch", style: { background: color(index) } }), dataset.id, dataset.share === null ? null : h("b", {}, `${percent(dataset.share)} of a batch`))));
}

function tile(name, value, more) {
  return h("div", { class: "tile" }, h("span", { class: "name" }, name), h("span", { class: "value" }, value), more ? h("span", { class: "more" }, more) : null);
}
const spread = (summary) => (summary.min === summary.max ? "in every episode" : `${number(summary.min)} to ${number(summary.max)}, median ${number(summary.median)}`);

function tiles(dataset, ends) {
  const { summary } = dataset, made = [tile("Steps", number(dataset.steps), `in ${plural(dataset.episodes, "episode")}`)];
  for (const [name, title] of [["return", "Mean return"], ["score", "Mean score"], ["length", "Mean length"]]) {
    if (summary[name]?.mean !== undefined) made.push(tile(title, number(summary[name].mean), spread(summary[name])));
  }
  made.push(tile("Terminated", percent(ends.terminated / ends.of), ends.of < dataset.episodes ? `of ${number(ends.of)} sampled episodes` : ends.terminated < ends.of ? "of the episodes; the others are truncated" : "of the episodes"));
  made.push(tile("Final observations", dataset.final_unknown ? `${number(dataset.final_unknown)} unknown` : "all known", dataset.final_unknown ? `of ${number(dataset.episodes)}; they read as zeros` : null));
  return h("div", { class: "tiles" }, made);
}

const STRIP = 8;
/** The first images of some episodes across the dataset, which lead to these episodes. */
async function firstFrames(dataset, index) {
  const pictures = dataset.fields.filter((field) => field.kind === "image");
  if (!pictures.length || !dataset.episodes) return [];
  const count = Math.min(STRIP, dataset.episodes), spread = (at) => (count === 1 ? 0 : Math.round((at * (dataset.episodes - 1)) / (count - 1)));
  const episodes = report ? (await get(`${index}/episodes`)).rows.slice(0, STRIP).map((row) => row.episode) : Array.from({ length: count }, (_, at) => spread(at));
  const strip = (field) => h("div", { class: "strip", role: "list" }, episodes.map((episode) => h("a", { href: `#/episode/${index}/${episode}`, role: "listitem" },
    h("span", { class: "picture", style: { "--ratio": pictureRatio(field.shape) } }, h("img", { src: frameAddress(index, episode, 0, field.name)?.address, alt: `${field.name} at the first step of episode ${number(episode)}`, loading: "lazy" })),
    h("span", { class: "small quiet" }, `episode ${number(episode)}`))));
  return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, "First images"), h("span", { class: "quiet small" }, `of ${plural(episodes.length, "episode")}${overview.datasets.length > 1 ? ` of ${dataset.id}` : ""}`)),
    pictures.map((field) => [pictures.length > 1 ? h("h3", { class: "mono" }, field.name) : null, strip(field)]));
}

function comparison(ends) {
  const datasets = overview.datasets;
  const mean = (name) => (dataset) => (dataset.summary[name]?.mean === undefined ? "–" : `${number(dataset.summary[name].mean)} ± ${number(dataset.summary[name].std, 3)}`);
  const lines = [
    ["Steps", (dataset) => number(dataset.steps)], ["Episodes", (dataset) => number(dataset.episodes)],
    ["Return", mean("return")], ["Score", mean("score")], ["Length", mean("length")],
    ["Terminated", (_, index) => percent(ends[index].terminated / ends[index].of)],
    ["Final observations unknown", (dataset) => number(dataset.final_unknown)], ["On disk", (dataset) => bytes(dataset.bytes)],
  ];
  if (datasets.some((dataset) => dataset.share !== null)) lines.unshift(["Share of a batch", (dataset) => percent(dataset.share)]);
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}), datasets.map((dataset, index) => h("th", { class: "number" }, h("span", { class: "swatch", style: { background: color(index) } }), " ", dataset.id)))),
    h("tbody", {}, lines.map(([name, value]) => h("tr", {}, h("th", { scope: "row", class: "quiet" }, name), datasets.map((dataset, index) => h("td", { class: "number" }, value(dataset, index))))))));
}

async function showOverview() {
  const datasets = overview.datasets;
  const ends = await Promise.all(datasets.map((_, index) => get(`${index}/ends`)));
  const single = datasets.length === 1 ? datasets[0] : null;
  const episodesBox = h("div", { class: "charts" }), stepsBox = h("div", { class: "charts" }), otherBox = h("div", { class: "charts" });
  const note = h("p", { class: "quiet small" });
  const others = overview.fields.filter((name) => name !== "next.reward" && name !== "action" && !name.startsWith("action."));
  const actions = overview.fields.filter((name) => name === "action" || name.startsWith("action."));
  const columns = ["return", "score", "length"].filter((name) => datasets.some((dataset) => dataset.summary[name]));
  drawHistograms(episodesBox, columns);
  drawHistograms(stepsBox, ["next.reward", ...actions.slice(0, 4)]).then((found) => { note.textContent = sampleText(found[0]); });
  return { content: [
    h("section", {}, h("h1", {}, single ? single.id : datasets.some((one) => one.share !== null) ? "Mixture" : datasets.length > 3 ? plural(datasets.length, "dataset") : datasets.map((one) => one.id).join(", ")),
      single ? h("p", { class: "quiet" }, [`${bytes(single.bytes)} on disk`, single.selection ? "a part of the upstream's dataset" : "", single.recipes.length ? `preprocessed by ${single.recipes.join(", ")}` : "", single.time_limit ? `time limit of ${number(single.time_limit)} steps` : ""].filter(Boolean).join(" · ")) : null,
      report ? h("p", { class: "notice" }, "This is a report: it has the distributions, and the episodes with the greatest, the middle and the least returns" + (datasets.some((one) => one.findings) ? ", and episodes of findings" : "") + (overview.paired ? ", and the first pairs of episodes that differ." : ".")) : null,
      datasets.some((one) => one.share !== null) ? h("p", { class: "quiet small" }, "Members as they are stored, before the transforms of the mixture.") : null,
      single ? tiles(single, ends[0]) : comparison(ends)),
    ...datasets.map((dataset, index) => findings(dataset, index)).filter(Boolean),
    ...(await Promise.all(datasets.map(firstFrames))).flat(),
    h("section", {}, h("div", { class: "section-head" }, h("h2", {}, "Episodes"), h("span", { class: "quiet small" }, "from all episodes"), legend()), episodesBox),
    h("section", {}, h("div", { class: "section-head" }, h("h2", {}, "Rewards and actions"), note, legend()), stepsBox),
    ...(others.length ? [h("section", {}, fieldPicker(others, otherBox), otherBox)] : []),
    ...datasets.map((dataset, index) => about(dataset, index))] };
}

async function drawHistograms(box, names, start = 0) {
  const current = (box.request = {});
  try {
    const found = await Promise.all(names.map((field) => get("histogram", { field, start })));
    if (box.request === current) box.replaceChildren(...found.flatMap((one) => one.panels.map((panel) => histogramChart(panel, one.unit, one.field))));
    return found;
  } catch (error) {
    box.replaceChildren(h("p", { class: "notice" }, error.message));
    return [];
  }
}

function sampleText(found) {
  if (!found) return "";
  const parts = found.sampled.map((count, index) => (count < overview.datasets[index].steps ? `a sample of ${number(count)} of ${number(overview.datasets[index].steps)} steps` : `all ${number(count)} steps`));
  return `from ${[...new Set(parts)].join(", ")}`;
}

function fieldPicker(names, box) {
  let start = 0;
  const select = h("select", { "aria-label": "Field" }, names.map((name) => h("option", { value: name }, name)));
  const pager = h("span", { class: "toolbar small" });
  const draw = async () => {
    const [found] = await drawHistograms(box, [select.value], start);
    pager.replaceChildren();
    if (found && found.elements > found.shown) pager.append(...elementPager(start, found.elements, found.shown, (to) => { start = to; draw(); }));
  };
  select.addEventListener("change", () => { start = 0; draw(); });
  select.value = names.find((name) => name.startsWith("observation")) ?? names[0];
  draw();
  return h("div", { class: "section-head" }, h("h2", {}, "Other fields"), select, pager);
}

function elementPager(start, total, shown, go) {
  if (report) return [h("span", { class: "quiet" }, `the first ${shown} of ${number(total)} elements`)];
  return [
    h("button", { type: "button", disabled: start === 0, "aria-label": "Previous elements", onclick: () => go(Math.max(0, start - shown)) }, "‹"),
    h("span", { class: "quiet" }, `elements ${number(start)} to ${number(Math.min(total, start + shown) - 1)} of ${number(total)}`),
    h("button", { type: "button", disabled: start + shown >= total, "aria-label": "Next elements", onclick: () => go(start + shown) }, "›"),
  ];
}

function findings(dataset, index) {
  const found = dataset.findings;
  if (!found) return null;
  const link = (row) => {
    if (row.episode === null) return "the whole dataset";
    const path = `episode/${index}/${row.episode}`;
    const beside = found.usual === null ? "" : `/${index}/${found.usual}`;
    return [h("a", { href: address(path, { t: row.step }) }, `episode ${number(row.episode)}`),
      beside ? [", ", h("a", { href: address(path + beside, { t: row.step }) }, `beside episode ${number(found.usual)}`)] : null].flat(2);
  };
  const rows = found.rows.map((row) => h("tr", {}, h("td", {}, row.level), h("td", { class: "mono" }, row.check), h("td", {}, row.message), h("td", {}, link(row)), h("td", { class: row.remedy.startsWith("-t ") ? "mono" : "" }, row.remedy)));
  return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, overview.datasets.length > 1 ? `Findings of the audit of ${dataset.id}` : "Findings of the audit"),
    h("span", { class: "quiet small" }, found.total > rows.length ? `${number(rows.length)} of ${number(found.total)}` : plural(found.total, "finding"))),
    rows.length ? [h("p", { class: "quiet small" }, "Episodes and rows are numbered from 0, rows over all episodes. A proof follows from the values alone, a strong finding is rarely wrong, and a hint is worth a look. A remedy that begins with -t is an option of rlds preprocess, which makes a new dataset with other numbers: apply several remedies in one command."),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Level", "Check", "Finding", "Where", "Remedy"].map((name) => h("th", {}, name)))), h("tbody", {}, rows)))]
      : h("p", { class: "quiet" }, "No check found anything."));
}

function about(dataset, index) {
  const list = (items) => (items.length ? h("ul", {}, items.map((item) => h("li", {}, item))) : null);
  const facts = [
    ["Score", dataset.score ? `0 is a return of ${number(dataset.score.low)}, 1 is ${number(dataset.score.high)}: ${dataset.score.origin}` : null],
    ["Known issues", list(dataset.known_issues)],
    ["Spikes", list(dataset.spikes)],
    ["Conversion", list(dataset.decisions.map((one) => `${one.text} (${one.count === 1 ? "once" : `${number(one.count)} times`})`))],
    ["License", dataset.license], ["Citation", dataset.citation],
    ["Homepage", dataset.homepage ? h("a", { href: dataset.homepage, rel: "noreferrer noopener", target: "_blank" }, dataset.homepage) : null],
  ].filter(([, value]) => value);
  const fields = dataset.fields.map((field) => h("tr", {}, h("td", { class: "mono" }, field.name), h("td", {}, field.dtype), h("td", { class: "mono" }, `[${field.shape.join(", ")}]`),
    h("td", { class: "quiet" }, field.shared ? "at t and t + 1" : field.name.startsWith("next.") ? "at t + 1" : "at t")));
  return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, overview.datasets.length > 1 ? ["About ", h("span", { class: "swatch", style: { background: color(index) } }), ` ${dataset.id}`] : "About")),
    h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Field", "Type", "Shape of a step", "Value"].map((name) => h("th", {}, name)))), h("tbody", {}, fields))));
}

// ---------------------------------------------------------------------------------------------------- list

const listQuery = (query) => ({ sort: query.get("sort") ?? "", descending: query.get("descending") ?? "", where: query.get("where") ?? "" });
function address(path, query) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#/${path}${[...words].length ? "?" + words : ""}`;
}

async function showEpisodes(index, query) {
  const dataset = overview.datasets[index], list = listQuery(query), offset = Number(query.get("offset") ?? 0);
  const go = (changes) => { location.hash = address(`episodes/${index}`, { ...list, offset: "", ...changes }); };
  const filter = h("input", { type: "text", value: list.where, placeholder: "return > 100 and length < 200", "aria-label": "Filter", spellcheck: "false", autocomplete: "off", onchange: () => go({ where: filter.value.trim() }) });
  const found = await get(`${index}/episodes`, { ...list, offset }).then((page) => [pages(page, go), episodeTable(dataset, index, page, list, go), page.rows.length > 15 ? pages(page, go) : null],
    (error) => [h("p", { class: "notice" }, error.message)]);
  return { content: [h("section", {}, h("div", { class: "section-head" }, h("h1", {}, "Episodes"), datasetSelect(index, (to) => { location.hash = address(`episodes/${to}`, { where: list.where }); })),
    report ? null : h("div", { class: "toolbar" }, filter, list.where ? h("button", { type: "button", onclick: () => go({ where: "" }) }, "Clear the filter") : null,
      h("span", { class: "quiet small" }, `columns: ${dataset.columns.join(", ")}`)), found)] };
}

function datasetSelect(index, go) {
  if (overview.datasets.length === 1) return null;
  return h("select", { "aria-label": "Dataset", onchange: (event) => go(Number(event.target.value)) },
    overview.datasets.map((dataset, at) => h("option", { value: at, selected: at === index }, dataset.id)));
}

function episodeTable(dataset, index, page, list, go) {
  const sort = list.sort || "episode", { min, max } = dataset.summary.return ?? {};
  const heads = dataset.columns.map((name) => {
    const active = !report && name === sort;
    const flip = active ? (list.descending ? "" : "1") : name === "episode" || name === "source" ? "" : "1";
    return h("th", { scope: "col", class: "number", "aria-sort": active ? (list.descending ? "descending" : "ascending") : null },
      report ? name : h("button", { type: "button", onclick: () => go({ sort: name, descending: flip }) }, name.replace("_", " ")));
  });
  const rows = page.rows.map((row) => {
    const target = address(`episode/${index}/${row.episode}`, list);
    return h("tr", { class: "link", onclick: (event) => { if (!event.target.closest("a")) location.hash = target; } },
      dataset.columns.map((name) => h("td", { class: "number" },
        name === "episode" ? h("a", { href: target, class: "open" }, number(row.episode)) : name === "final_known" ? (row[name] ? "known" : "unknown") : number(row[name], 6),
        name === "return" && max > min && row.return !== null ? h("span", { class: "bar", style: { width: `${(100 * (row.return - min)) / (max - min)}%` } }) : null)),
      h("td", {}, row.end));
  });
  if (!rows.length) return h("p", { class: "empty" }, "No episode fulfills this filter.");
  return h("div", { class: "scroll" }, h("table", { id: "list" }, h("thead", {}, h("tr", {}, heads, h("th", { scope: "col" }, "end"))), h("tbody", {}, rows)));
}

function pages(page, go) {
  const last = page.offset + page.rows.length;
  const text = page.rows.length ? `${number(page.offset + 1)} to ${number(last)} of ${plural(page.matching, "episode")}${page.matching < page.total ? `, from ${number(page.total)} in all` : ""}` : "";
  if (report) return h("p", { class: "quiet small" }, `${plural(page.rows.length, "episode")} of ${number(page.total)}: greatest, middle and least returns`);
  return h("div", { class: "toolbar" },
    h("button", { type: "button", disabled: page.offset === 0, onclick: () => go({ offset: Math.max(0, page.offset - 50) }) }, "Previous"),
    h("button", { type: "button", disabled: last >= page.matching, onclick: () => go({ offset: last }) }, "Next"), h("span", { class: "quiet small" }, text));
}

// ---------------------------------------------------------------------------------------------------- episode

/** The step under the cursor, from 0 to T; T is the state after the last action. */
function makeTime(length, start) {
  const listeners = [];
  const time = {
    now: start, length,
    listen: (listener) => listeners.push(listener),
    clamp: (own) => Math.min(time.now, own),
    set(to) {
      const next = Math.max(0, Math.min(length, to));
      if (next === time.now || Number.isNaN(next)) return;
      time.now = next;
      listeners.forEach((listener) => listener());
    },
  };
  return time;
}

/** The address of the page has the step under the cursor, so that a reload keeps the step. */
function keepStep(time, own, query, usual = 0) {
  let waiting = 0;
  time.listen(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (location.hash.split("?")[0] === `#/${own}`) history.replaceState(null, "", address(own, { ...query, t: time.now === usual ? "" : time.now }));
    }, 200);
  });
  leave.push(() => clearTimeout(waiting));
}

const stepKeys = (time) => ({
  ArrowLeft: (event) => time.set(time.now - (event.shiftKey ? 10 : 1)), ArrowRight: (event) => time.set(time.now + (event.shiftKey ? 10 : 1)),
  Home: () => time.set(0), End: () => time.set(time.length), " ": () => document.getElementById("play").click(),
});

async function showEpisode(parts, query) {
  const list = listQuery(query);
  const chosen = [];
  for (let at = 0; at + 1 < parts.length; at += 2) chosen.push({ dataset: Number(parts[at]), episode: Number(parts[at + 1]) });
  const found = await Promise.all(chosen.map(({ dataset, episode }) => get(`${dataset}/episodes/${episode}`, list)));
  const time = makeTime(Math.max(...found.map((one) => one.length)), 0);
  time.set(Number(query.get("t") ?? 0));
  const panes = chosen.map((one, at) => ({ ...one, ...found[at], episode: one.episode }));
  const go = (changed, at) => {
    const next = chosen.map((one, place) => (place === at ? { ...one, ...changed } : one));
    location.hash = address(`episode/${next.map((one) => `${one.dataset}/${one.episode}`).join("/")}`, list);
  };
  const close = (at) => { location.hash = address(`episode/${chosen.filter((_, place) => place !== at).map((one) => `${one.dataset}/${one.episode}`).join("/")}`, list); };
  const bodies = await Promise.all(panes.map((pane, at) => paneElement(pane, { time, list, two: panes.length > 1, change: (changed) => go(changed, at), close: () => close(at) })));
  const content = [h("div", { class: `panes ${panes.length > 1 ? "two" : ""}` }, bodies), player(time, overview.datasets[panes[0].dataset].fps)];
  keepStep(time, `episode/${parts.join("/")}`, list);
  const keys = {
    ...stepKeys(time),
    j: () => found[0].next !== null && go({ episode: found[0].next }, 0), k: () => found[0].previous !== null && go({ episode: found[0].previous }, 0),
  };
  return { content, keys };
}

function paneHead(pane, { two, list, change, close }) {
  const dataset = overview.datasets[pane.dataset];
  const pick = h("input", { type: "number", min: 0, max: dataset.episodes - 1, value: pane.episode, "aria-label": "Episode", onchange: (event) => change({ episode: Math.max(0, Math.min(dataset.episodes - 1, Number(event.target.value) || 0)) }) });
  const other = overview.datasets.length > 1 ? (pane.dataset + 1) % overview.datasets.length : pane.dataset;
  const beside = overview.datasets.length > 1 ? Math.min(pane.episode, overview.datasets[other].episodes - 1) : pane.next ?? pane.previous;
  const compare = () => { location.hash = address(`episode/${pane.dataset}/${pane.episode}/${other}/${beside}`, list); };
  return h("section", {},
    h("div", { class: "pane-title" }, h(two ? "h2" : "h1", {}, "Episode"), report ? h(two ? "h2" : "h1", {}, number(pane.episode)) : pick,
      datasetSelect(pane.dataset, (to) => change({ dataset: to, episode: Math.min(pane.episode, overview.datasets[to].episodes - 1) })),
      h("button", { type: "button", title: "Previous in the list (k)", "aria-label": "Previous episode", disabled: pane.previous === null, onclick: () => change({ episode: pane.previous }) }, "‹"),
      h("button", { type: "button", title: "Next in the list (j)", "aria-label": "Next episode", disabled: pane.next === null, onclick: () => change({ episode: pane.next }) }, "›"),
      two ? h("button", { type: "button", onclick: close }, "Close") : !report && beside !== null ? h("button", { type: "button", id: "compare", onclick: compare }, "Compare with another") : null),
    h("div", { class: "episode-head" },
      h("span", {}, h("span", { class: "quiet" }, "return "), number(pane.return, 6)), pane.score === undefined ? null : h("span", {}, h("span", { class: "quiet" }, "score "), number(pane.score)),
      h("span", {}, h("span", { class: "quiet" }, "length "), number(pane.length)),
      h("span", { class: "badge" }, pane.end), pane.final_known ? null : h("span", { class: "badge warn" }, "final observation unknown"),
      dataset.columns.filter((name) => !["episode", "return", "score", "length", "final_known"].includes(name)).map((name) => h("span", { class: "small quiet" }, `${name.replace("_", " ")} ${number(pane[name])}`))));
}

async function paneElement(pane, options) {
  const dataset = overview.datasets[pane.dataset];
  const pictures = dataset.fields.filter((field) => field.kind === "image");
  const curves = h("div", { class: "curves" }), texts = h("div", { class: "texts" });
  const drawn = dataset.fields.filter((field) => field.kind === "number").map((field) => field.name);
  const actions = drawn.filter((name) => name === "action" || name.startsWith("action."));
  const rest = drawn.filter((name) => name !== "next.reward" && !actions.includes(name));
  const elements = (name) => dataset.fields.find((field) => field.name === name).elements;
  const observation = rest.find((name) => name.startsWith("observation")) ?? [...rest].sort((a, b) => elements(b) - elements(a))[0];
  const cameras = pictures.length > 1; // side by side, over the curves, of which those of the actions are the first
  const first = cameras ? [...actions.slice(0, 2), "next.reward"] : ["next.reward", ...actions.slice(0, 2)];
  const made = await Promise.all(first.map((name) => curveBox(pane, name, options)));
  curves.append(...made);
  const others = dataset.fields.filter((field) => rest.includes(field.name));
  if (others.length) curves.append(await curvePicker(others, observation, (name, start) => curveBox(pane, name, options, start)));
  return h("div", { class: "pane" }, paneHead(pane, options),
    texts, h("div", { class: `look ${pictures.length ? "framed" : ""} ${cameras ? "cameras" : ""}` }, pictures.length ? frames(pane, pictures, options.time) : null, curves, rowTable(pane, dataset, pictures, options.time, texts)));
}

const isDiscrete = (field) => /^(bool|u?int)/.test(field.dtype);

async function curveBox(pane, name, { time }, start = 0) {
  try {
    const curves = await get(`${pane.dataset}/episodes/${pane.episode}/curves`, { field: name, start });
    const field = overview.datasets[pane.dataset].fields.find((one) => one.name === name);
    const lines = curveLines(curves, name, { length: pane.length, unknown: field.shared && curves.final === null });
    const options = { length: pane.length, time, discrete: isDiscrete(field) };
    if (lines.length <= 4) return lineChart(lines, { ...options, title: name, note: pointsNote(curves) });
    return h("div", { class: "chart" }, h("div", { class: "chart-head" }, h("h3", {}, name), h("span", { class: "quiet" }, plural(curves.elements, "element"))),
      h("div", { class: "multiples" }, lines.map((line) => lineChart([{ ...line, color: 0 }], { ...options, title: "", height: 58, compact: true }))));
  } catch (error) {
    return h("p", { class: "notice" }, error.message);
  }
}

/** Curves of a chosen field. `box` returns the element for the name of a field and its first drawn element. */
async function curvePicker(fields, chosen, box, start = 0) {
  const drawn = h("div", { class: "curves" }), pager = h("span", { class: "toolbar small" });
  const select = h("select", { "aria-label": "Field of the curves" }, fields.map(({ name }) => h("option", { value: name }, name)));
  select.value = chosen;
  const draw = async () => {
    const { elements } = fields.find((one) => one.name === select.value);
    pager.replaceChildren(...(elements > ELEMENTS ? elementPager(start, elements, ELEMENTS, (to) => { start = to; draw(); }) : []));
    drawn.replaceChildren(await box(select.value, start));
  };
  select.addEventListener("change", () => { start = 0; draw(); });
  await draw();
  return h("div", { class: fields.length > 1 ? "picked" : "" }, h("div", { class: "toolbar" }, fields.length > 1 ? select : null, pager), drawn);
}

const frames = (pane, pictures, time) => h("div", { class: "frames" }, pictures.map((field) => frame(pane, field, time)));

/** The image of a field at the step under the cursor. The caption names the steps of `runs`, where another image differs. */
function frame(pane, field, time, runs = []) {
  const image = h("img", { alt: `${field.name} at the step under the cursor`, decoding: "sync" });
  const missing = h("span", { class: "quiet small" }, "unknown");
  const caption = h("span", {});
  const ratio = pictureRatio(field.shape);
  const update = () => {
    const t = time.clamp(pane.length), final = t === pane.length;
    const absent = final && (!field.shared || (!pane.final_known && field.name.startsWith("observation")));
    const found = absent ? null : frameAddress(pane.dataset, pane.episode, t, field.name);
    image.hidden = !found;
    missing.hidden = Boolean(found);
    missing.textContent = field.shared ? "unknown: reads as zeros" : "no value after the last action";
    if (found && image.getAttribute("src") !== found.address) image.src = found.address;
    caption.textContent = final ? "after the last action" : found && found.step !== t ? `step ${number(found.step)}, the nearest before ${number(t)}` : `step ${number(t)}`;
    if (isIn(runs, t)) caption.append(": differs");
    if (!report && t + 1 < pane.length) new Image().src = frameAddress(pane.dataset, pane.episode, t + 1, field.name).address;
  };
  time.listen(update);
  update();
  const scale = pane.scales[field.name];
  return h("figure", { style: { "--ratio": ratio } }, h("div", { class: "picture" }, image, missing),
    h("figcaption", {}, h("span", { class: "mono" }, field.name), caption),
    scale ? h("div", { class: "scale small quiet", title: "one scale for all images of this episode" }, number(scale[0]), h("span", { class: "ramp", "aria-label": "from black to white" }), number(scale[1])) : null);
}

function pictureRatio(shape) {
  if (shape.length === 2) return `${shape[1]} / ${shape[0]}`;
  if ([1, 3, 4].includes(shape[2])) return `${shape[1]} / ${shape[0]}`;
  return [1, 3].includes(shape[0]) ? `${shape[2]} / ${shape[1]}` : `${shape[2] * shape[0]} / ${shape[1]}`;
}

function player(time, fps) {
  const range = h("input", { type: "range", min: 0, max: time.length, value: time.now, "aria-label": "Step", oninput: () => time.set(Number(range.value)) });
  const where = h("span", { class: "where quiet" });
  const speed = h("select", { "aria-label": "Steps per second" }, [...new Set([5, 10, 20, 50, fps ?? 20])].sort((a, b) => a - b).map((value) => h("option", { value, selected: value === (fps ?? 20) }, `${number(value)} / s`)));
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "▶"; play.setAttribute("aria-label", "Play"); };
  const start = () => {
    if (time.now >= time.length) time.set(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
    timer = setInterval(() => { time.set(time.now + 1); if (time.now >= time.length) stop(); }, 1000 / Number(speed.value));
  };
  const play = h("button", { type: "button", id: "play", "aria-label": "Play", onclick: () => (timer ? stop() : start()) }, "▶");
  speed.addEventListener("change", () => { if (timer) { stop(); start(); } });
  const update = () => {
    range.value = time.now;
    where.textContent = time.now === time.length ? `after step ${number(time.length - 1)}, the last` : `step ${number(time.now)} of ${number(time.length)}`;
  };
  time.listen(update);
  update();
  leave.push(() => clearInterval(timer));
  return h("div", { class: "player" }, play,
    h("button", { type: "button", "aria-label": "One step back", onclick: () => time.set(time.now - 1) }, "‹"), h("button", { type: "button", "aria-label": "One step forward", onclick: () => time.set(time.now + 1) }, "›"),
    range, where, speed);
}

// ---------------------------------------------------------------------------------------------------- pairs of episodes

const side = (index, name) => [h("span", { class: "swatch", style: { background: color(index) } }), " ", name];
const isIn = (runs, t) => runs.some(([from, to]) => from <= t && t < to);
const renamed = (one) => (one.name === one.other ? one.name : `${one.name} → ${one.other}`);

async function showPairs(query) {
  const whole = query.get("whole") ?? "", page = await get("pairs", { offset: Number(query.get("offset") ?? 0), whole });
  const go = (changes) => { location.hash = address("pairs", { whole, ...changes }); };
  const last = page.offset + page.rows.length;
  const rows = page.rows.map((row) => h("tr", { class: "link", onclick: (event) => { if (!event.target.closest("a")) location.hash = `#/pair/${row.pair}`; } },
    row.episodes.map((episode, at) => h("td", { class: "number" }, h("a", { href: `#/pair/${row.pair}`, class: at ? null : "open" }, number(episode)))),
    row.lengths.map((length) => h("td", { class: "number" }, number(length))),
    h("td", {}, row.differs.length ? row.differs.join(", ") : h("span", { class: "quiet" }, "equal"))));
  return { content: [
    h("section", {}, h("h1", {}, "Differences"), h("div", { class: "legend" }, page.names.map((name, at) => h("span", { class: "key" }, side(at, name)))), h("p", {}, page.summary)),
    page.fields.length ? h("section", {}, h("h2", {}, "Values"), differenceTable(page.fields, null)) : null,
    page.changes.length ? h("section", {}, h("h2", {}, "Description"), h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}), page.names.map((name, at) => h("th", {}, side(at, name))))),
      h("tbody", {}, page.changes.map(([name, ...both]) => h("tr", {}, h("td", { class: "mono" }, name), both.map((text) => h("td", {}, text || h("span", { class: "quiet" }, "nothing"))))))))) : null,
    h("section", {}, h("div", { class: "section-head" }, h("h2", {}, "Episodes of both"),
      h("span", { class: "quiet small" }, `${number(page.different)} of ${number(page.total)} differ`),
      report ? null : h("button", { type: "button", id: "whole", onclick: () => go({ whole: whole ? "" : "1", offset: "" }) }, whole ? "Show pairs that differ" : "Show all")),
      rows.length ? h("div", { class: "scroll" }, h("table", { id: "pairs" }, h("thead", {}, h("tr", {},
        page.names.map((name, at) => h("th", { class: "number" }, side(at, "episode"))), page.names.map((name, at) => h("th", { class: "number" }, side(at, "steps"))), h("th", {}, "what differs"))), h("tbody", {}, rows)))
        : h("p", { class: "quiet" }, page.total ? "No episode differs." : "The datasets have no episode in common."),
      !report && page.matching > page.rows.length ? h("div", { class: "toolbar" },
        h("button", { type: "button", disabled: page.offset === 0, onclick: () => go({ offset: Math.max(0, page.offset - 50) }) }, "Previous"),
        h("button", { type: "button", disabled: last >= page.matching, onclick: () => go({ offset: last }) }, "Next"), h("span", { class: "quiet small" }, `${number(page.offset + 1)} to ${number(last)} of ${number(page.matching)}`)) : null),
    ...page.only.map(({ total, episodes }, at) => (total ? h("section", {}, h("div", { class: "section-head" }, h("h2", {}, ["Only in ", side(at, page.names[at])]),
      h("span", { class: "quiet small" }, total > episodes.length ? `the first ${number(episodes.length)} of ${plural(total, "episode")}` : plural(total, "episode"))),
      h("p", {}, episodes.flatMap((episode) => [report ? number(episode) : h("a", { href: `#/episode/${at}/${episode}` }, number(episode)), " "]))) : null))].filter(Boolean) };
}

/** The difference of each field as numbers. Without a time, the first difference leads to its pair. */
function differenceTable(fields, time) {
  const first = (one) => {
    if (!one.first) return h("span", { class: "quiet" }, "equal");
    const { step, element, before, after, pair, episodes } = one.first, place = element.length ? ` [${element.join(", ")}]` : "";
    const text = `${time ? "" : episodes[0] === episodes[1] ? `episode ${number(episodes[0])}, ` : `episode ${number(episodes[0])} → ${number(episodes[1])}, `}${step < 0 ? "" : `step ${number(step)}`}${place}`;
    const link = time ? h("button", { type: "button", class: "step", disabled: step < 0, onclick: () => time.set(step) }, text || "the episode") : h("a", { href: address(`pair/${pair}`, { t: Math.max(0, step) }) }, text);
    return [link, " ", h("span", { class: "mono" }, `${minus(before)} → ${minus(after)}`)];
  };
  const heads = ["Field", "Steps that differ", "Values", ...(time ? [] : ["Episodes"]), "Greatest difference", "First difference"];
  return h("div", { class: "scroll" }, h("table", { id: "differences" }, h("thead", {}, h("tr", {}, heads.map((name) => h("th", {}, name)))),
    h("tbody", {}, fields.map((one) => h("tr", {}, h("td", { class: "mono" }, renamed(one)), h("td", {}, one.of_steps ? `${number(one.steps)} of ${number(one.compared)}` : "–"), h("td", {}, number(one.values)),
      time ? null : h("td", {}, number(one.episodes)), h("td", {}, one.greatest === null ? "–" : number(one.greatest)), h("td", {}, first(one)))))));
}

async function showPair(number_, query) {
  const pair = await get(`pairs/${number_}`), panes = await Promise.all(pair.episodes.map(async (episode, dataset) => ({ dataset, ...(await get(`${dataset}/episodes/${episode}`)), episode })));
  const names = overview.datasets.map((dataset) => dataset.id), time = makeTime(Math.max(...pair.lengths), 0);
  time.set(Number(query.get("t") ?? pair.first ?? 0));
  const own = `pair/${number_}`, go = (to) => { if (to !== null) location.hash = `#/pair/${to}`; };
  const described = (dataset, name) => overview.datasets[dataset].fields.find((field) => field.name === name);
  const fields = pair.fields.filter((one) => one.of_steps).map((one) => ({ ...one, kind: described(0, one.name).kind, size: described(0, one.name).elements }));
  const drawn = fields.filter((one) => one.kind === "number" && described(1, one.other).kind === "number"), differ = drawn.filter((one) => one.first), equal = drawn.filter((one) => !one.first);
  const start = (one) => (one.first ? Math.floor(one.first.flat / ELEMENTS) * ELEMENTS : 0);
  const box = (one, from) => pairCurves(pair, one, from, time);
  const curves = await Promise.all(differ.map((one) => curvePicker([{ name: one.name, elements: one.size }], one.name, (_, from) => box(one, from), start(one))));
  if (equal.length) curves.push(h("h2", {}, differ.length ? "Other fields" : "Fields"), await curvePicker(equal.map((one) => ({ name: one.name, elements: one.size })), equal[0].name, (name, from) => box(equal.find((one) => one.name === name), from)));
  const pictures = fields.filter((one) => one.kind === "image" && described(1, one.other).kind === "image");
  const changes = fields.flatMap((one) => one.runs.map(([from]) => from)).sort((a, b) => a - b);
  const jump = (forward) => { const to = forward ? changes.find((one) => one > time.now) : changes.findLast((one) => one < time.now); if (to !== undefined) time.set(to); };
  const heading = h("section", {},
    h("div", { class: "pane-title" }, h("h1", {}, "Two episodes"),
      h("button", { type: "button", title: "The previous pair that differs (k)", "aria-label": "Previous pair", disabled: pair.previous === null, onclick: () => go(pair.previous) }, "‹"),
      h("button", { type: "button", title: "The next pair that differs (j)", "aria-label": "Next pair", disabled: pair.next === null, onclick: () => go(pair.next) }, "›"),
      h("a", { href: "#/pairs" }, "all differences"), h("a", { href: `#/episode/${panes.map((pane) => `${pane.dataset}/${pane.episode}`).join("/")}` }, "with the rows of both")),
    h("div", { class: "legend" }, panes.map((pane, at) => h("span", { class: "key" }, side(at, names[at]), h("b", {}, `episode ${number(pane.episode)}`), `${plural(pane.length, "step")}, ${pane.end}, return ${number(pane.return, 6)}`))),
    changes.length ? h("div", { class: "toolbar small" }, h("button", { type: "button", id: "earlier", onclick: () => jump(false) }, "Previous difference"), h("button", { type: "button", id: "later", onclick: () => jump(true) }, "Next difference"),
      h("span", { class: "quiet" }, `the first is at step ${number(pair.first)}; steps that differ are marked below the curves`)) : h("p", { class: "quiet" }, "All values of the steps that both have are equal."));
  const listed = pair.fields.filter((one) => one.first || one.name !== one.other);
  keepStep(time, own, {}, pair.first ?? 0);
  return { content: [heading, listed.length ? differenceTable(listed, time) : null,
    pictures.length ? h("div", { class: "frames beside" }, pictures.map((one) => [frame(panes[0], described(0, one.name), time, one.runs), frame(panes[1], described(1, one.other), time, one.runs)])) : null,
    h("div", { class: "curves" }, curves), pairTable(panes, fields, names, time), player(time, overview.datasets[0].fps)].filter(Boolean),
    keys: { ...stepKeys(time), j: () => go(pair.next), k: () => go(pair.previous), d: () => jump(true), D: () => jump(false) } };
}

/** The curves of a field of both episodes on the same axes, a chart for each element. */
async function pairCurves(pair, one, start, time) {
  try {
    const both = await Promise.all([one.name, one.other].map((field, at) => get(`${at}/episodes/${pair.episodes[at]}/curves`, { field, start })));
    const lines = both.map((curves, at) => curveLines(curves, at ? one.other : one.name, { length: pair.lengths[at] }).map((line) => ({ ...line, color: at, over: at === 1, text: "" })));
    const labels = both[0].labels, few = labels.length <= 4, field = overview.datasets[0].fields.find((found) => found.name === one.name);
    const first = one.first, options = { length: time.length, time, discrete: isDiscrete(field) };
    const charts = labels.map((label, index) => lineChart(lines.map((of) => of[index]), {
      ...options, runs: one.elements.includes(start + index) ? one.runs : [], first: first && first.flat === start + index ? first.step : null, ...(few ? { title: label, note: pointsNote(both[0]) } : { title: label.slice(one.name.length), height: 58, compact: true }) }));
    return few ? h("div", { class: "curves" }, charts)
      : h("div", { class: "chart" }, h("div", { class: "chart-head" }, h("h3", {}, renamed(one)), h("span", { class: "quiet" }, `${number(one.elements.length)} of ${plural(one.size, "element")} differ`)), h("div", { class: "multiples" }, charts));
  } catch (error) {
    return h("p", { class: "notice" }, error.message);
  }
}

/** The values of both episodes at the step under the cursor. */
function pairTable(panes, fields, names, time) {
  const title = h("h2", {}), box = h("div", { class: "scroll" }), shown = fields.filter((one) => one.kind !== "image");
  let request = 0;
  const update = async () => {
    const mine = (request += 1), t = time.now;
    title.textContent = `Values at step ${number(t)}`;
    try {
      const chunks = await Promise.all(panes.map((pane) => get(`${pane.dataset}/episodes/${pane.episode}/rows`, { start: Math.floor(Math.min(t, pane.length - 1) / CHUNK) * CHUNK })));
      if (mine !== request) return;
      const value = (at, name) => {
        const values = chunks[at].states[name] ?? chunks[at].steps[name], found = t > panes[at].length ? undefined : values[t - chunks[at].start];
        if (found === undefined) return h("span", { class: "absent" }, t > panes[at].length ? "after the end" : "–");
        return found === null && t === panes[at].length ? h("span", { class: "absent" }, "unknown") : cell(found, overview.datasets[at].fields.find((field) => field.name === name));
      };
      box.replaceChildren(h("table", { class: "row" }, h("thead", {}, h("tr", {}, h("th", {}, "Key"), names.slice(0, 2).map((name, at) => h("th", {}, side(at, name))))),
        h("tbody", {}, shown.map((one) => h("tr", {}, h("th", { scope: "row", class: "mono" }, renamed(one)),
          [one.name, one.other].map((name, at) => h("td", { class: isIn(one.runs, t) ? "differs-cell" : "" }, value(at, name))))))));
    } catch (error) {
      if (mine === request) box.replaceChildren(h("p", { class: "empty" }, error.message));
    }
  };
  time.listen(update);
  update();
  return h("section", {}, h("div", { class: "section-head" }, title, h("span", { class: "quiet small" }, "to seven digits; values that differ have a colored ground")), box);
}

// ---------------------------------------------------------------------------------------------------- the row

/** The row under the cursor; its texts, such as the task, are also shown above the episode. */
function rowTable(pane, dataset, pictures, time, texts) {
  const title = h("h2", {}), aside = h("span", { class: "quiet small" }), box = h("div", { class: "scroll" });
  let request = 0;
  const update = async () => {
    const mine = (request += 1), t = Math.min(time.clamp(pane.length), pane.length - 1), final = t === pane.length - 1;
    title.textContent = `Row ${number(pane.first_row + t)}`;
    aside.textContent = `step ${number(t)} of the episode, as a batch has it in TED`;
    try {
      const chunk = await get(`${pane.dataset}/episodes/${pane.episode}/rows`, { start: Math.floor(t / CHUNK) * CHUNK });
      if (mine !== request) return;
      box.replaceChildren(rowContent(pane, dataset, pictures, chunk, t, final));
      texts.replaceChildren(...dataset.fields.filter((field) => field.kind === "text").map((field) => {
        const text = (chunk.states[field.name] ?? chunk.steps[field.name])[t - chunk.start];
        return h("p", { title: text }, h("span", { class: "quiet small" }, field.name), " ", text || h("span", { class: "quiet" }, "empty text"));
      }));
    } catch (error) {
      if (mine === request) box.replaceChildren(h("p", { class: "empty" }, error.message));
    }
  };
  time.listen(update);
  update();
  return h("section", {}, h("div", { class: "section-head" }, title, aside), box);
}

function rowContent(pane, dataset, pictures, chunk, t, final) {
  const at = t - chunk.start, lines = new Map();
  const line = (name) => lines.get(name) ?? lines.set(name, {}).get(name);
  const unknown = h("span", { class: "absent" }, "unknown, reads as zeros");
  for (const field of dataset.fields) {
    const name = field.name.replace(/^next\./, ""), state = chunk.states[field.name];
    if (field.kind === "image") {
      line(name).now = picture(pane, t, field.name);
      const known = pane.final_known || !field.name.startsWith("observation");
      if (field.shared) line(name).next = final && !known ? unknown.cloneNode(true) : picture(pane, t + 1, field.name);
    } else if (field.shared) {
      line(name).now = cell(state[at], field);
      line(name).next = final && state[at + 1] === null ? unknown.cloneNode(true) : cell(state[at + 1], field);
    } else if (field.name.startsWith("next.")) line(name).next = cell(chunk.steps[field.name][at], field);
    else line(name).now = cell(chunk.steps[field.name][at], field);
    line(name).shared = field.shared;
  }
  for (const flag of ["terminated", "truncated", "done"]) line(flag).now = "false";
  const none = () => h("span", { class: "absent" }, "–");
  return h("table", { class: "row" },
    h("thead", {}, h("tr", {}, h("th", {}, "Key"), h("th", {}, `at t = ${number(t)}`), h("th", {}, `next, at t + 1 = ${number(t + 1)}`,
      final ? h("span", { class: `badge ${pane.final_known ? "good" : "warn"}` }, pane.final_known ? "true final observation" : "final observation unknown") : null))),
    h("tbody", {}, [...lines].map(([name, { now, next, shared }]) => h("tr", {}, h("th", { scope: "row", class: "mono" }, name), h("td", {}, now ?? none()), h("td", { class: final && shared && !name.startsWith("info") ? "final-cell" : "" }, next ?? none())))));
}

function cell(value, field) {
  if (!Array.isArray(value)) return field.dtype === "text" ? value || h("span", { class: "absent" }, "empty text") : exact(value);
  const rest = field.elements - value.length;
  const name = (at) => (field.names ? h("span", { class: "quiet" }, `${field.names[at]} `) : null);
  return [...value.flatMap((one, at) => [h("span", { class: "value" }, name(at), exact(one)), " "]), rest ? `… and ${number(rest)} more` : null];
}

function picture(pane, t, name) {
  const found = frameAddress(pane.dataset, pane.episode, t, name);
  return found && found.step === t ? h("img", { src: found.address, alt: `${name} at ${t}` }) : h("span", { class: "absent" }, "not in this report");
}

// ---------------------------------------------------------------------------------------------------- frame of the page

let keysOf = {};
let shows = 0;
async function show() {
  const mine = (shows += 1);
  const [path, words] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...parts] = path.split("/"), query = new URLSearchParams(words ?? "");
  leave.forEach((end) => end());
  leave = [];
  const dataset = Math.min(Number(parts[0]) || 0, overview.datasets.length - 1);
  document.getElementById("nav-overview").toggleAttribute("aria-current", !page);
  const ofPairs = page === "pairs" || page === "pair";
  document.getElementById("nav-episodes").toggleAttribute("aria-current", Boolean(page) && !ofPairs);
  document.getElementById("nav-pairs").toggleAttribute("aria-current", ofPairs);
  document.getElementById("nav-episodes").href = page && !ofPairs ? address(`episodes/${dataset}`, listQuery(query)) : "#/episodes/0";
  main.setAttribute("aria-busy", "true");
  try {
    const { content, keys } = await (page === "pairs" ? showPairs(query) : page === "pair" ? showPair(parts[0], query) : page === "episode" ? showEpisode(parts, query) : page === "episodes" ? showEpisodes(dataset, query) : showOverview());
    if (mine !== shows) return; // another page was asked for in the meantime
    main.replaceChildren(...content);
    keysOf = keys ?? {};
    if (!["episode", "pair"].includes(page) || !document.activeElement?.closest?.("main")) main.focus({ preventScroll: true });
  } catch (error) {
    if (mine !== shows) return;
    main.replaceChildren(h("p", { class: "notice" }, error.message));
    keysOf = {};
  }
  main.removeAttribute("aria-busy");
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest?.("input:not([type=range]), select, textarea");
  if (typing || (event.key === " " && event.target.closest?.("button, a"))) return;
  const general = { o: () => { location.hash = "#/"; }, e: () => { location.hash = document.getElementById("nav-episodes").hash; }, "?": () => document.getElementById("keys").showModal() };
  const act = keysOf[event.key] ?? general[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  try { if (theme) localStorage.setItem("theme", theme); } catch { /* no storage in this browser */ }
}

async function start() {
  try { setTheme(localStorage.getItem("theme")); } catch { /* as above */ }
  document.getElementById("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    setTheme(dark ? "light" : "dark");
  });
  document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
  document.addEventListener("keydown", pressed);
  try {
    overview = await get("overview");
  } catch (error) {
    main.replaceChildren(h("p", { class: "notice" }, error.message));
    return;
  }
  const names = overview.datasets.map((dataset) => dataset.id);
  document.title = names.join(" · ");
  document.getElementById("brand").textContent = names.length > 2 ? plural(names.length, "dataset") : names.join(" · ");
  document.getElementById("nav-pairs").hidden = !overview.paired;
  addEventListener("hashchange", show);
  if (overview.paired && !location.hash) history.replaceState(null, "", "#/pairs"); // a comparison was asked for
  await show();
}

start();
