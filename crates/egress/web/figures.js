// The tiles: what the node says of itself, once a second. What a node does not have is not shown as nothing.

const LINE_POINTS = 120;
const ALARMS_SHOWN_MAX = 5;

export function grouped(value) {
  return Math.round(value).toLocaleString("en-GB");
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${at === 0 ? left : left.toPrecision(3)} ${units[at]}`;
}

export function span(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function decimals(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(1);
  return Number(value.toPrecision(digits)).toString();
}

const percent = (part) => `${Math.round(part * 100)} %`;

// A small line of the last two minutes, with a mark to compare with.
class Line {
  constructor() {
    this.values = [];
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
  }

  add(value, mark) {
    this.values.push(value);
    if (this.values.length > LINE_POINTS) this.values.shift();
    this.mark = mark;
    this.draw();
  }

  draw() {
    const { canvas, values, mark } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth * ratio;
    const height = canvas.clientHeight * ratio;
    if (width === 0) return;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const style = getComputedStyle(canvas);
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    const known = values.filter((value) => value !== null);
    const top = Math.max(...known, mark ?? 0, 1e-9) * 1.1;
    const y = (value) => height - 1 - (value / top) * (height - 2);
    if (mark !== null && mark !== undefined) {
      pen.strokeStyle = style.getPropertyValue("--quiet");
      pen.setLineDash([4 * ratio, 3 * ratio]);
      pen.lineWidth = ratio;
      pen.beginPath();
      pen.moveTo(0, y(mark));
      pen.lineTo(width, y(mark));
      pen.stroke();
      pen.setLineDash([]);
    }
    pen.strokeStyle = style.getPropertyValue("--accent");
    pen.lineWidth = 1.5 * ratio;
    pen.beginPath();
    let down = false;
    values.forEach((value, at) => {
      const x = ((at + LINE_POINTS - values.length) / (LINE_POINTS - 1)) * width;
      if (value === null) down = false;
      else if (down) pen.lineTo(x, y(value));
      else pen.moveTo(x, y(value));
      down = value !== null;
    });
    pen.stroke();
  }
}

class Tile {
  constructor(parent, id, title, { line = false, wide = false } = {}) {
    this.element = document.createElement("article");
    this.element.className = wide ? "tile wide" : "tile";
    this.element.id = `tile-${id}`;
    this.title = document.createElement("h3");
    this.title.textContent = title;
    this.main = document.createElement("div");
    this.main.className = "main";
    this.number = document.createElement("span");
    this.unit = document.createElement("small");
    this.main.append(this.number, this.unit);
    this.more = [];
    this.element.append(this.title, this.main);
    if (line) {
      this.line = new Line();
      this.element.append(this.line.canvas);
    }
    parent.append(this.element);
  }

  set(number, unit = "", tone = "") {
    write(this.number, number);
    write(this.unit, unit);
    const name = `main ${tone}`.trim();
    if (this.main.className !== name) this.main.className = name;
  }

  // Lines below the figure. An element of them is a text, or [name, part, text] for a bar.
  lines(all) {
    all.forEach((what, at) => {
      const kind = Array.isArray(what) ? "row" : "more";
      let line = this.more[at];
      if (!line || line.className !== kind) {
        const made = document.createElement("div");
        made.className = kind;
        if (kind === "row") {
          const bar = document.createElement("progress");
          bar.max = 1;
          made.append(document.createElement("span"), bar, document.createElement("span"));
        }
        if (line) line.replaceWith(made);
        else if (this.line) this.line.canvas.before(made);
        else this.element.append(made);
        line = made;
        this.more[at] = made;
      }
      if (kind === "more") {
        write(line, what);
        return;
      }
      const [name, part, text] = what;
      const [label, bar, said] = line.children;
      write(label, name);
      bar.setAttribute("aria-label", name);
      bar.value = Math.min(Math.max(part ?? 0, 0), 1);
      write(said, text);
    });
    for (const line of this.more.splice(all.length)) line.remove();
  }
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export class Figures {
  constructor(parent) {
    this.parent = parent;
    this.tiles = new Map();
    this.before = null;
  }

  tile(id, title, options) {
    if (!this.tiles.has(id)) this.tiles.set(id, new Tile(this.parent, id, title, options));
    return this.tiles.get(id);
  }

  show(status) {
    this.readings(status);
    this.lag(status);
    this.freshness(status);
    this.tardiness(status);
    this.knobs(status);
    this.flash(status);
    this.wear(status);
    this.alarms(status);
    this.upstream(status.upstream);
    this.streaming(status.mounts);
    this.jobs(status.jobs);
    this.power(status.power);
    this.store(status);
    this.before = status;
  }

  readings(status) {
    const tile = this.tile("readings", "Readings", { line: true });
    const { before } = this;
    let rate = null;
    if (before && before.node.pid === status.node.pid && status.node.uptime_ms > before.node.uptime_ms) {
      const seconds = (status.node.uptime_ms - before.node.uptime_ms) / 1000;
      rate = (status.log.readings_taken - before.log.readings_taken) / seconds;
    }
    tile.set(rate === null ? "–" : grouped(rate), "a second");
    tile.line.add(rate, null);
    const { refused_total: refused } = status.intake;
    const lost = status.history.readings_dropped + status.log.refused_full;
    tile.lines([
      `${grouped(status.log.readings_durable)} on flash`,
      `${grouped(refused)} refused, ${grouped(lost)} without room`,
    ]);
  }

  lag(status) {
    const { log } = status;
    const tile = this.tile("lag", "Durable lag", { line: true });
    const high = log.durable_lag_ms > Math.max(4 * log.commit_interval_ms, 1000);
    tile.set(decimals(log.durable_lag_ms), "ms", high ? "bad" : "");
    tile.line.add(log.durable_lag_ms, log.commit_interval_ms);
    tile.lines([
      `a flush every ${log.commit_interval_ms} ms (dashed)`,
      `99 % on flash within ${decimals(log.put_durable_us.p99 / 1000)} ms`,
    ]);
  }

  freshness(status) {
    const { keys_fresh: fresh, keys_temporal: all } = status.qos;
    const tile = this.tile("freshness", "Freshness", { line: true });
    const part = all > 0 ? fresh / all : null;
    tile.set(part === null ? "–" : percent(part), all > 0 ? "of values fresh" : "", part !== null && part < 0.9 ? "warn" : "");
    tile.line.add(part, 1);
    tile.lines([`${grouped(fresh)} of ${grouped(all)} keys`, `${grouped(status.qos.readings_shed)} updates left out`]);
  }

  tardiness(status) {
    const { last, tardiness_target: target, tasks } = status.qos;
    const tile = this.tile("tardiness", "Tardiness", { line: true });
    const count = tasks.length === 1 ? "1 task" : `${tasks.length} tasks`;
    const mean = last ? last.tardiness_mean : null;
    tile.set(decimals(mean), mean === null ? "" : "of the deadline", mean > 1 ? "bad" : "");
    tile.line.add(mean, target);
    const misses = last ? `${percent(last.miss_ratio)} of deadlines missed` : "no task reports";
    tile.lines([`${count}, ${misses}`, target === null ? "no target" : `held at ${decimals(target)} (dashed)`]);
  }

  knobs(status) {
    const { qos } = status;
    const tile = this.tile("control", "Controller");
    const says = { open: "only watches", "dvfs-only": "drives speed", "qod-only": "drives updates", mimo: "drives both" };
    tile.set(qos.mode, says[qos.mode] ?? "", qos.saturated && qos.speed_held !== "low" ? "warn" : "");
    const held = (limit) => (limit === "free" || !limit ? "" : `, held ${limit}`);
    tile.lines([
      ["speed", qos.speed, percent(qos.speed)],
      ["updates", qos.admitted, percent(qos.admitted)],
      `speed by ${qos.actuator}${held(qos.speed_held)}; updates${held(qos.admitted_held) || " free"}`,
    ]);
  }

  flash(status) {
    const { flash } = status;
    const tile = this.tile("flash", "Flash operations a reading");
    const { operations_per_reading: each, operations_per_reading_bound: bound } = flash;
    const over = each !== null && bound !== null && each > bound;
    tile.set(decimals(each), bound === null ? "" : `of at most ${decimals(bound)}`, over ? "bad" : "");
    tile.lines([
      ["of bound", each === null ? 0 : each / bound, each === null ? "–" : percent(each / bound)],
      `${grouped(flash.operations)} writes and flushes, bound ${grouped(flash.operations_bound)}`,
    ]);
  }

  wear(status) {
    const { wear } = status;
    const tile = this.tile("wear", "Wear");
    const day = wear.gigabytes_per_day_recent ?? wear.gigabytes_per_day;
    tile.set(decimals(day), day === null ? "known after a minute" : "GB a day");
    const years = wear.card_years_left;
    const rated = wear.card_rated_terabytes === null ? "the card's rating is not configured"
      : years === null ? "years known after ten minutes" : `${decimals(years)} years left of the card's rating`;
    const gigabytes = wear.card_written_terabytes * 1000;
    const written = gigabytes < 1 ? `${decimals(gigabytes * 1000)} MB` : `${decimals(gigabytes)} GB`;
    tile.lines([rated, `${written} written, ${decimals(wear.bytes_per_reading)} B a reading`]);
  }

  alarms({ alarms: all, alarms_active: active }) {
    if (!all || all.length === 0) return;
    const tile = this.tile("alarms", "Alarms");
    const raised = all.reduce((sum, one) => sum + one.active, 0);
    tile.set(grouped(raised), "raised", raised > 0 ? "bad" : "");
    const shown = (active ?? []).slice(0, ALARMS_SHOWN_MAX);
    const more = raised - shown.length;
    const watched = all.reduce((sum, one) => sum + one.watched, 0);
    tile.lines([
      ...shown.map((one) => `! ${one.alarm} ${one.key} since ${span(one.since_ms)}: ${one.value ?? "no number"}`),
      ...(more > 0 ? [`and ${grouped(more)} more`] : []),
      `${all.length === 1 ? "1 alarm" : `${all.length} alarms`} on ${watched === 1 ? "1 key" : `${grouped(watched)} keys`}`,
    ]);
  }

  upstream(all) {
    if (!all || all.length === 0) return;
    const tile = this.tile("upstream", "Upstream");
    const backlog = all.reduce((sum, one) => sum + (one.backlog_readings ?? 0), 0);
    const cut = all.filter((one) => !one.connected);
    tile.set(grouped(backlog), "readings wait", cut.length > 0 ? "bad" : "");
    tile.element.classList.toggle("is-cut", cut.length > 0);
    tile.lines(all.map((one) => {
      const state = one.connected ? "✓ connected" : `✗ cut${one.last_error ? `: ${one.last_error}` : ""}`;
      return `${one.name}: ${state}, ${grouped(one.backlog_readings ?? 0)} wait`;
    }));
  }

  streaming(all) {
    if (!all || all.length === 0) return;
    const tile = this.tile("streaming", "Programs from the network");
    const reads = all.reduce((sum, one) => sum + one.reads, 0);
    const local = all.reduce((sum, one) => sum + one.reads_local, 0);
    tile.set(reads > 0 ? percent(local / reads) : "–", "of reads without the network", all.some((one) => one.failing) ? "bad" : "");
    tile.lines(all.map((one) => {
      const state = !one.mounted ? `✗ not mounted${one.last_error ? `: ${one.last_error}` : ""}`
        : one.connections === 0 ? "✗ no server" : one.connections > 0 ? "✓ server answers" : "mounted";
      return `${one.name}: ${state}, ${grouped(one.reads)} reads`;
    }));
  }

  jobs(all) {
    if (!all || all.length === 0) return;
    const tile = this.tile("jobs", "Jobs and advice");
    const runs = all.reduce((sum, one) => sum + one.runs, 0);
    tile.set(grouped(runs), "runs", all.some((one) => one.failing) ? "bad" : "");
    tile.lines(all.map((one) => {
      if (one.failing) return `${one.name}: ✗ failed${one.last_error ? `: ${one.last_error}` : ""}`;
      return `${one.name}: ${one.place ?? "not placed yet"}${one.why ? `, ${one.why}` : ""}`;
    }));
  }

  power(all) {
    if (!all || all.length === 0) return;
    const tile = this.tile("power", "Power");
    tile.set(all[0].watts === null ? "–" : decimals(all[0].watts), all[0].watts === null ? "" : "W");
    tile.lines(all.map((one) => {
      const value = one.watts === null ? `no value${one.why ? `: ${one.why}` : ""}` : `${decimals(one.watts)} W`;
      return `${one.name}: ${value}, ${one.covers}`;
    }));
  }

  store(status) {
    const { store, history, node } = status;
    const tile = this.tile("store", "Store");
    tile.set(bytes(store.free_bytes), "free", store.full ? "bad" : "");
    tile.lines([
      ["history", history.bytes / (history.bytes_max || store.capacity_bytes), bytes(history.bytes)],
      `memory ${bytes(node.memory_resident_bytes)}`,
    ]);
  }
}
