// Plots of keys: history from the node, down-sampled, then what comes. Drawn when a new value would move a pixel, and at
// most four times a second.
import { ask } from "./live.js";

const POINTS = 400;
const DRAW_MS_MIN = 250;
const HEIGHT = 170;
const PLOTS_MAX = 8;
const CHOSEN = "keel-plots";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function number(value) {
  if (typeof value === "number") return value;
  if (typeof value === "boolean") return Number(value);
  return null;
}

class Plot {
  constructor(key, span_ms, parent, remove) {
    this.key = key;
    this.span_ms = span_ms;
    // Seconds, mean, least, greatest.
    this.data = [[], [], [], []];
    this.waiting = [];
    this.loaded = false;
    this.changed = false;
    this.drawn_ms = 0;
    this.element = document.createElement("article");
    this.element.className = "plot";
    this.element.dataset.key = key;
    const bar = document.createElement("div");
    bar.className = "bar";
    const title = document.createElement("h3");
    title.textContent = key;
    this.now = document.createElement("span");
    this.now.className = "now";
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "×";
    close.setAttribute("aria-label", `Remove the plot of ${key}`);
    close.addEventListener("click", remove);
    bar.append(title, this.now, close);
    this.canvas = document.createElement("div");
    this.canvas.className = "canvas";
    this.note = document.createElement("p");
    this.note.className = "quiet";
    this.note.textContent = "reading history";
    this.element.append(bar, this.canvas, this.note);
    parent.append(this.element);
    this.chart = new uPlot(this.options(), this.data, this.canvas);
    this.resize = new ResizeObserver(() => {
      const width = this.canvas.clientWidth;
      if (width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
    });
    this.resize.observe(this.canvas);
    this.load();
  }

  options() {
    const ink = colour("--quiet");
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui, sans-serif" };
    return {
      width: Math.max(this.canvas.clientWidth, 200),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false } },
      padding: [8, 20, 0, 0],
      scales: { y: { range: (_, low, high) => range(low, high) } },
      axes: [{ ...axis, size: 28, space: 70, values: (_, all) => all.map(clock) }, { ...axis, size: 52, space: 30, values: (_, all) => all.map(short) }],
      series: [
        {},
        // One value alone is a dot, or nothing would be seen of it.
        { stroke: colour("--accent"), width: 1.5, points: { show: (chart) => chart.data[0].length < 3, size: 7 } },
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
      ],
      bands: [{ series: [3, 2], fill: colour("--band") }],
    };
  }

  async load() {
    const now_ms = Date.now();
    const query = `key=${encodeURIComponent(this.key)}&last_ms=${this.span_ms}&points=${POINTS}`;
    try {
      const answer = await (await ask(`api/v1/history?${query}`)).json();
      const [series] = answer.series;
      const piece_ms = (answer.to_ms - answer.from_ms) / POINTS;
      this.data = [
        series.time_ms.map((time) => (time + piece_ms / 2) / 1000),
        series.mean, series.min, series.max,
      ];
      this.note.textContent = answer.complete ? "" : "A part of this span was too long to read.";
      const hidden = answer.records_damaged + answer.readings_missing;
      if (hidden > 0) this.note.textContent = "A part of the log cannot be read.";
    } catch (error) {
      this.note.textContent = `History: ${error.message}`;
    }
    this.note.hidden = this.note.textContent === "";
    this.loaded = true;
    this.loaded_ms = Date.now() - now_ms;
    const last = this.data[0].at(-1) ?? 0;
    for (const [time, value] of this.waiting) if (time > last) this.append(time, value);
    this.waiting = [];
    this.changed = true;
  }

  add(time_ms, value) {
    this.now.textContent = text(value);
    const y = number(value);
    if (y === null) return;
    if (!this.loaded) {
      this.waiting.push([time_ms / 1000, y]);
      return;
    }
    this.append(time_ms / 1000, y);
    this.changed = true;
  }

  append(time, value) {
    const [times, means, lows, highs] = this.data;
    // uPlot wants times that grow; one that goes back is in the history.
    if (time < (times.at(-1) ?? 0)) return;
    // Live values closer together than a point of the plot share one.
    const point = this.span_ms / 1000 / (2 * POINTS);
    const at = times.length - 1;
    if (at > 0 && times[at] - times[at - 1] < point && time - times[at] < point) {
      means[at] = value;
      lows[at] = Math.min(lows[at], value);
      highs[at] = Math.max(highs[at], value);
      times[at] = time;
    } else {
      times.push(time);
      means.push(value);
      lows.push(value);
      highs.push(value);
    }
  }

  draw(now_ms) {
    const pixel_ms = this.span_ms / Math.max(this.chart.width, 1);
    if (!this.changed || now_ms - this.drawn_ms < Math.max(DRAW_MS_MIN, pixel_ms)) return;
    const from = (now_ms - this.span_ms) / 1000;
    const first = this.data[0].findIndex((time) => time >= from);
    if (first > 64) for (const column of this.data) column.splice(0, first);
    this.chart.batch(() => {
      this.chart.setData(this.data, false);
      this.chart.setScale("x", { min: from, max: now_ms / 1000 });
    });
    this.changed = false;
    this.drawn_ms = now_ms;
    this.element.dataset.points = this.data[0].length;
  }

  end() {
    this.resize.disconnect();
    this.chart.destroy();
    this.element.remove();
  }
}

// A range that does not make noise look like an event.
function range(low, high) {
  if (low === null || high === null) return [0, 1];
  const least = Math.max(Math.abs(low), Math.abs(high), 1e-9) * 0.01;
  const spare = Math.max((high - low) * 0.1, least);
  return [low - spare, high + spare];
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(0);
  return Number(value.toPrecision(5)).toString();
}

// Hours and minutes, with seconds where they are not 0; the day at midnight.
function clock(seconds) {
  const time = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  if (time.getHours() + time.getMinutes() + time.getSeconds() === 0) return `${time.getDate()}.${time.getMonth() + 1}.`;
  const shown = `${two(time.getHours())}:${two(time.getMinutes())}`;
  return time.getSeconds() === 0 ? shown : `${shown}:${two(time.getSeconds())}`;
}

// A value as people read it.
export function text(value, digits = 6) {
  if (typeof value === "number") {
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e9 || size < 1e-4)) return value.toExponential(3);
    return Number(value.toPrecision(digits)).toString();
  }
  return value === null ? "–" : String(value);
}

export class Plots {
  // `latest` gives value and time of a key.
  constructor(parent, none, latest, changed) {
    this.latest = latest;
    this.parent = parent;
    this.none = none;
    this.changed = changed;
    this.span_ms = 900000;
    this.plots = new Map();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.again());
  }

  chosen() {
    try {
      const keys = JSON.parse(localStorage.getItem(CHOSEN));
      return Array.isArray(keys) ? keys : null;
    } catch {
      return null;
    }
  }

  has(key) {
    return this.plots.has(key);
  }

  toggle(key, keep = true) {
    if (this.has(key)) {
      this.plots.get(key).end();
      this.plots.delete(key);
    } else {
      if (this.plots.size >= PLOTS_MAX) this.toggle(this.plots.keys().next().value, false);
      this.plots.set(key, new Plot(key, this.span_ms, this.parent, () => this.toggle(key)));
    }
    this.begin(key);
    this.none.hidden = this.plots.size > 0;
    if (keep) localStorage.setItem(CHOSEN, JSON.stringify([...this.plots.keys()]));
    this.changed();
  }

  // What there is now stands there at once.
  begin(key) {
    const entry = this.latest(key);
    if (entry && entry.time_ms > 0) this.add(key, entry.time_ms, entry.value);
  }

  span(span_ms) {
    this.span_ms = span_ms;
    this.again();
  }

  // Anew: another span, other colours, or a stream that was broken meanwhile.
  again() {
    const keys = [...this.plots.keys()];
    for (const plot of this.plots.values()) plot.end();
    this.plots.clear();
    for (const key of keys) {
      this.plots.set(key, new Plot(key, this.span_ms, this.parent, () => this.toggle(key)));
      this.begin(key);
    }
  }

  add(key, time_ms, value) {
    this.plots.get(key)?.add(time_ms, value);
  }

  // `now_ms`: by the node's clock, which the values' times are of.
  draw(now_ms) {
    for (const plot of this.plots.values()) plot.draw(now_ms);
  }
}
