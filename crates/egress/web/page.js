// The page: state, figures, plots, and every value by group.
import { ask, follow, setToken } from "./live.js";
import { Figures, span, write } from "./figures.js";
import { Plots, text } from "./plots.js";

const DRAW_MS_MIN = 250;
const PLOTS_FIRST = 4;
const ROWS_MAX = 300;
const SPANS = [["5 min", 300000], ["15 min", 900000], ["1 h", 3600000], ["24 h", 86400000]];
const SIGNS = { ok: ["✓ ok", "good"], degraded: ["! degraded", "warn"], failed: ["✗ failed", "bad"] };

const $ = (id) => document.getElementById(id);
const main = document.querySelector("main");
const keys = new Map(); // key → { key, value, digits, time_ms, group, name, validity_ms, temporal }
const groups = new Map();
let clock_ahead_ms = 0; // the node's clock against this one's
let down_since = null;
let status = null;
let drawn_ms = 0;
let chosen = false;

const figures = new Figures($("figures"));
const plots = new Plots($("plots"), $("plots-none"), (key) => keys.get(key), () => groups.forEach((group) => { group.dirty = true; }));

const node_now = () => Date.now() + clock_ahead_ms;

// ---- values by group: everything before the last level

class Group {
  constructor(name) {
    this.name = name;
    this.keys = [];
    this.dirty = true;
    this.rows = new Map();
    this.element = document.createElement("details");
    this.element.className = "group";
    this.element.dataset.group = name;
    const summary = document.createElement("summary");
    this.title = document.createElement("b");
    this.title.textContent = name || "(no group)";
    this.count = document.createElement("span");
    this.strip = document.createElement("canvas");
    this.strip.setAttribute("aria-hidden", "true");
    this.range = document.createElement("span");
    this.range.className = "range";
    summary.append(this.title, this.count, this.strip, this.range);
    this.element.append(summary);
    this.element.addEventListener("toggle", () => { this.dirty = true; });
  }

  add(entry) {
    this.keys.push(entry);
    this.keys.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    this.dirty = true;
    this.rebuild = true;
  }

  draw(now_ms, filter) {
    const fits = filter === "" ? this.keys : this.keys.filter((entry) => entry.key.includes(filter));
    this.element.hidden = fits.length === 0;
    if (fits.length === 0) return;
    const old = fits.filter((entry) => !is_fresh(entry, now_ms)).length;
    write(this.count, `${fits.length === 1 ? "1 key" : `${fits.length} keys`}, ${old === 0 ? "✓ all fresh" : `! ${old} old`}`);
    this.count.className = old === 0 ? "good" : "warn";
    write(this.range, ranges(fits));
    this.paint(fits, now_ms);
    if (this.element.open) this.table(fits, now_ms);
  }

  // One cell for each key: full where its value is fresh, hollow where it is old.
  paint(fits, now_ms) {
    const ratio = window.devicePixelRatio || 1;
    const width = this.strip.clientWidth * ratio;
    const height = this.strip.clientHeight * ratio;
    if (width === 0) return;
    if (this.strip.width !== width) this.strip.width = width;
    if (this.strip.height !== height) this.strip.height = height;
    const style = getComputedStyle(this.strip);
    const pen = this.strip.getContext("2d");
    pen.clearRect(0, 0, width, height);
    const rows = Math.max(1, Math.ceil((fits.length * 7 * ratio) / width));
    const columns = Math.ceil(fits.length / rows);
    const step = Math.min(width / columns, 14 * ratio);
    const tall = height / rows;
    pen.lineWidth = ratio;
    const good = style.getPropertyValue("--good");
    const warn = style.getPropertyValue("--warn");
    fits.forEach((entry, at) => {
      const x = (at % columns) * step;
      const y = Math.floor(at / columns) * tall;
      const [w, h] = [Math.max(step - 2 * ratio, 1), Math.max(tall - 2 * ratio, 1)];
      if (is_fresh(entry, now_ms)) {
        pen.fillStyle = good;
        pen.fillRect(x, y, w, h);
      } else {
        pen.strokeStyle = warn;
        pen.strokeRect(x + ratio / 2, y + ratio / 2, w - ratio, h - ratio);
      }
    });
  }

  table(fits, now_ms) {
    const shown = fits.slice(0, ROWS_MAX);
    if (this.rebuild || this.shown !== shown.length) {
      this.rebuild = false;
      this.shown = shown.length;
      this.body?.remove();
      this.rows.clear();
      this.body = document.createElement("table");
      for (const entry of shown) this.body.append(this.row(entry));
      this.element.append(this.body);
    }
    for (const entry of shown) {
      const row = this.rows.get(entry.key);
      if (!row) {
        this.rebuild = true;
        continue;
      }
      write(row.value, entry.digits ?? text(entry.value));
      write(row.age, span(now_ms - entry.time_ms));
      const name = is_fresh(entry, now_ms) ? "" : "stale";
      if (row.element.className !== name) row.element.className = name;
      const pressed = String(plots.has(entry.key));
      if (row.button.getAttribute("aria-pressed") !== pressed) row.button.setAttribute("aria-pressed", pressed);
    }
  }

  row(entry) {
    const element = document.createElement("tr");
    element.dataset.key = entry.key;
    const [name, value, age] = [0, 1, 2].map(() => element.insertCell());
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = entry.name;
    button.title = `Plot ${entry.key}`;
    button.addEventListener("click", () => plots.toggle(entry.key));
    name.append(button);
    this.rows.set(entry.key, { element, value, age, button });
    return element;
  }
}

// Keys of one kind have one name but for a number at its end.
const kind_of = (name) => name.replace(/[-_.]?\d+$/, "") || name;

// The least and the greatest value of each kind, of a few kinds.
function ranges(entries) {
  const kinds = new Map();
  for (const { name, value } of entries) {
    if (typeof value !== "number") continue;
    const [low, high] = kinds.get(kind_of(name)) ?? [value, value];
    kinds.set(kind_of(name), [Math.min(low, value), Math.max(high, value)]);
  }
  return [...kinds].slice(0, 4).map(([kind, [low, high]]) =>
    `${kind} ${low === high ? text(low, 4) : `${text(low, 4)} to ${text(high, 4)}`}`).join(" · ");
}

function is_fresh(entry, now_ms) {
  return !entry.temporal || now_ms - entry.time_ms <= entry.validity_ms;
}

function meet(key) {
  const at = key.lastIndexOf("/");
  const group_name = at < 0 ? "" : key.slice(0, at);
  const entry = { key, name: key.slice(at + 1), value: null, time_ms: 0, validity_ms: 60000, temporal: true };
  keys.set(key, entry);
  if (!groups.has(group_name)) {
    const group = new Group(group_name);
    groups.set(group_name, group);
    const after = [...groups.keys()].filter((name) => compare(name, group_name) > 0).sort(compare)[0];
    $("groups").insertBefore(group.element, after === undefined ? null : groups.get(after).element);
  }
  entry.group = groups.get(group_name);
  entry.group.add(entry);
  learn_soon();
  return entry;
}

const compare = (one, other) => one.localeCompare(other, "en", { numeric: true });

// How long values are fresh is asked once for all keys that have come since.
let learning = 0;
function learn_soon() {
  if (learning) return;
  learning = setTimeout(async () => {
    learning = 0;
    try {
      for (const found of (await (await ask("api/v1/keys")).json()).keys) {
        const entry = keys.get(found.key);
        if (entry) Object.assign(entry, { validity_ms: found.validity_ms, temporal: found.temporal });
      }
    } catch {
      learning = setTimeout(() => { learning = 0; learn_soon(); }, 5000);
    }
  }, 200);
}

function take(values) {
  clock_ahead_ms = values.now_ms - Date.now();
  for (const [key, [value, time_ms, digits]] of Object.entries(values.values)) {
    const entry = keys.get(key) ?? meet(key);
    entry.value = value;
    entry.digits = digits;
    entry.time_ms = time_ms;
    entry.group.dirty = true;
    if (plots.has(key)) plots.add(key, time_ms, value);
  }
  if (!chosen && keys.size > 0) choose();
}

// The plots of the last visit; at the first one those of the first keys that are numbers, of different groups.
function choose() {
  chosen = true;
  const before = plots.chosen();
  if (before) {
    before.filter((key) => keys.has(key)).forEach((key) => plots.toggle(key, false));
    return;
  }
  const numbers = [...keys.values()].filter((entry) => typeof entry.value === "number");
  const names = new Set();
  const first = [];
  for (const entry of numbers) {
    if (first.length < PLOTS_FIRST && !names.has(kind_of(entry.name))) {
      names.add(kind_of(entry.name));
      first.push(entry);
    }
  }
  for (const entry of numbers) if (first.length < PLOTS_FIRST && !first.includes(entry)) first.push(entry);
  first.forEach((entry) => plots.toggle(entry.key, false));
}

// ---- state

function show_status(found) {
  status = found;
  const [sign, tone] = SIGNS[found.state] ?? [found.state, "warn"];
  write($("state"), sign);
  $("state").className = `chip ${tone}`;
  write($("node"), `keel ${found.node.version}, up ${span(found.node.uptime_ms)}`);
  const list = $("reasons");
  list.className = `reasons ${found.state}`;
  const said = found.reasons.map((reason) => `${reason.code}\u0000${reason.text}`).join("\n");
  if (list.dataset.said !== said) {
    list.dataset.said = said;
    list.replaceChildren(...found.reasons.map((reason) => {
      const line = document.createElement("li");
      const code = document.createElement("b");
      code.textContent = reason.code;
      line.append(code, reason.text);
      return line;
    }));
  }
  figures.show(found);
}

let was_up = false;
let missed = 0;
function link() {
  if (!was_up) return;
  if (down_since !== null) {
    write($("link"), `✗ no connection for ${span(Date.now() - down_since)}`);
    $("link").className = "bad";
    return;
  }
  write($("link"), missed > 0 ? `! live; ${missed.toLocaleString("en-GB")} updates came too fast` : "● live");
  $("link").className = "quiet";
}

// ---- drawing: at most four times a second, and not while nobody looks

function draw(force = false) {
  const now = Date.now();
  if (document.hidden || (!force && now - drawn_ms < DRAW_MS_MIN)) return;
  drawn_ms = now;
  const now_ms = node_now();
  const filter = $("filter").value.trim();
  $("keys-none").hidden = keys.size > 0;
  const aged = Math.floor(now / 1000) !== draw.second;
  draw.second = Math.floor(now / 1000);
  for (const group of groups.values()) {
    // Ages change by the second; values as they come, where they are shown.
    if (aged || force || (group.dirty && (group.element.open || group.count.textContent === ""))) {
      group.draw(now_ms, filter);
      group.dirty = false;
    }
  }
  if (down_since === null) plots.draw(now_ms);
  link();
}

setInterval(draw, DRAW_MS_MIN);
document.addEventListener("visibilitychange", () => draw(true));
$("filter").addEventListener("input", () => draw(true));

for (const [name, span_ms] of SPANS) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.setAttribute("aria-pressed", String(span_ms === plots.span_ms));
  button.addEventListener("click", () => {
    for (const other of $("span").children) other.setAttribute("aria-pressed", String(other === button));
    plots.span(span_ms);
  });
  $("span").append(button);
}

// ---- the stream

follow("api/v1/stream?status=1", {
  event(name, found) {
    if (name === "values") take(found);
    else if (name === "status") show_status(found);
    else if (name === "missed") missed += found.updates;
  },
  up() {
    down_since = null;
    main.hidden = false;
    main.classList.remove("cut");
    // What came while the line was cut is in the history.
    if (was_up) plots.again();
    was_up = true;
    draw(true);
  },
  down(why) {
    if (down_since === null) down_since = Date.now();
    main.classList.add("cut");
    write($("state"), "✗ unreachable");
    $("state").className = "chip bad";
    $("state").title = why;
    link();
  },
  denied() {
    const form = $("token-form");
    const was_shown = !form.hidden;
    form.hidden = false;
    write($("state"), "token needed");
    $("token-wrong").textContent = was_shown || $("token").value ? "The node does not know this token." : "";
    $("token").focus();
    return new Promise((done) => {
      form.onsubmit = (event) => {
        event.preventDefault();
        setToken($("token").value, $("token-keep").checked);
        form.hidden = true;
        done();
      };
    });
  },
});
