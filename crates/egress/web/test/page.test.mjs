// The live page in a real browser: node page.test.mjs KEEL PAGE_RIG [SHOTS]. The last line is the total.
import { spawn, execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { closeSync, mkdtempSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { feed } from "./sensors.mjs";

const [keel, rig, shots] = process.argv.slice(2);
const { chromium } = createRequire(join(process.env.PAGE_TEST_MODULES ?? ".", "x.js"))("playwright-core");
const work = mkdtempSync(join(tmpdir(), "keel-page-"));
const ends = [];
const tests = [];
const WAIT = { timeout: 60000 };
const DESKTOP = { width: 1280, height: 900 };
const PHONE = { width: 390, height: 844 };
const TOKEN = "0123456789abcdef0123";
if (shots) mkdirSync(shots, { recursive: true });

const test = (name, run) => tests.push([name, run]);

function check(is_so, what) {
  if (!is_so) throw new Error(what);
}

async function until(what, ask) {
  const begun = Date.now();
  for (;;) {
    const found = await ask();
    if (found) return found;
    check(Date.now() - begun < 60000, `waited for ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

function free_port() {
  return new Promise((done) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });
}

function start(program, args, folder) {
  const child = spawn(program, args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
  child.said = "";
  for (const from of [child.stdout, child.stderr]) from.on("data", (text) => { child.said += text; });
  child.over = new Promise((done) => { child.on("exit", done); });
  ends.push(async () => {
    child.kill("SIGTERM");
    await child.over;
  });
  return child;
}

async function start_node(name, port, line_port, more = "") {
  const folder = join(work, name);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "keel.toml"), `
[store]
create_mebibytes = 32
card_rated_write_terabytes = 30.0
[line]
tcp_listen = "127.0.0.1:${line_port}"
unix_socket = ""
[http]
listen = "127.0.0.1:${port}"
requests_per_second_max = 1000
${more}`);
  const node = start(keel, ["run", "-c", "keel.toml"], folder);
  node.folder = folder;
  await until("the node", () => {
    check(node.exitCode === null, `the node ended: ${node.said}`);
    return node.said.includes(" ready: ");
  });
  return node;
}

async function open(browser, url, size) {
  const context = await browser.newContext({ viewport: size, colorScheme: size.dark ? "dark" : "light" });
  const page = await context.newPage();
  page.wrong = [];
  page.asked = [];
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") page.wrong.push(`${message.text()} ${message.location().url}`);
  });
  page.on("request", (request) => page.asked.push(request.url()));
  await page.goto(url);
  return page;
}

const shown = (page, selector) => page.locator(selector).first().textContent();

async function shoot(page, name) {
  if (shots) await page.screenshot({ path: join(shots, `${name}.png`), fullPage: true });
}

// Whether something is drawn on a plot: pixels of its line's colour.
const drawn = (page) => page.evaluate(() => [...document.querySelectorAll(".plot canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 200 && data[at + 2] > data[at] + 60) count += 1;
  }
  return count;
}));

// The page of the rig, beside the status of a node in which the test changes what it wants.
async function rig_of(name, port) {
  const status = await (await fetch(`http://127.0.0.1:${port}/api/v1/status`)).json();
  const file = join(work, `${name}.json`);
  const set = (change) => {
    Object.assign(status, change);
    // Whole at every moment: the rig reads it for each question.
    writeFileSync(`${file}.new`, JSON.stringify(status));
    renameSync(`${file}.new`, file);
  };
  const serve = async (sensors) => {
    const address = `127.0.0.1:${await free_port()}`;
    const running = start(rig, [address, sensors, "10", file]);
    await until("the rig", () => running.said.includes("serving"));
    return `http://${address}/`;
  };
  return { status, set, serve };
}

// Texts whose contrast to what is behind them is below 4.5. A text that is not opaque, or in something that is not, is
// mixed with it.
const faint = (page) => page.evaluate(() => {
  const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const light = (colour) => colour.map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, opaque = 1] = parse(getComputedStyle(at).backgroundColor);
      if (b !== undefined && opaque === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const opacity = (element) =>
    (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const behind = ground(element);
    const colour = parse(getComputedStyle(element).color);
    const part = (colour[3] ?? 1) * opacity(element);
    const seen = behind.map((below, at) => below + (colour[at] - below) * part);
    const [one, other] = [light(seen), light(behind)];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return found;
});

// Checks the contrast of every text that the page shows now, light and dark.
async function readable(page, when) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const bad = await faint(page);
    check(bad.length === 0, `${when}, ${colorScheme}: ${bad.join("; ")}`);
  }
}

const no_overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth);

test("values change, plots draw, and nothing is asked of anybody else", async ({ browser, port, line_port }) => {
  const sensors = feed(line_port, { sensors: 192, rate: 4 });
  ends.push(async () => sensors.end());
  const page = await open(browser, `http://127.0.0.1:${port}/`, DESKTOP);
  await page.locator("#groups .group").first().waitFor(WAIT);
  await until("four plots", async () => (await page.locator(".plot").count()) === 4);
  const values = new Set();
  await until("changing values", async () => {
    values.add(await shown(page, ".plot .now"));
    return values.size >= 4;
  });
  await until("lines in every plot", async () => (await drawn(page)).every((count) => count > 40));
  const before = Number(await page.locator(".plot").first().getAttribute("data-points"));
  await until("points that are added", async () =>
    Number(await page.locator(".plot").first().getAttribute("data-points")) > before);
  await page.locator("#groups .group summary").first().click();
  await until("the 48 keys of a group", async () => (await page.locator("#groups .group").first().locator("tr").count()) === 48);
  const row = page.locator("#groups .group tr").nth(1);
  const key = await row.getAttribute("data-key");
  await row.locator("button").click();
  await page.locator(`.plot[data-key="${key}"] .canvas canvas`).waitFor(WAIT);
  check((await shown(page, "#tile-readings .main")).includes("a second"), "readings a second");
  await until("a rate", async () => /^[67]\d\d|^8\d\d/.test(await shown(page, "#tile-readings .main")));
  await until("the flash bound", async () => (await shown(page, "#tile-flash .main")).includes("of at most"));
  check((await shown(page, "#tile-control .main")).startsWith("open"), "the controller's mode");
  check((await shown(page, "#tile-freshness .main")).includes("100 %"), "freshness");
  check((await shown(page, "#tile-lag")).includes("a flush every 250 ms"), "durable lag");
  // Which of the two stands there depends on how long the node has run.
  const wear = await shown(page, "#tile-wear");
  check(/^Wear(–known after a minute|[\d.e-]+GB a day)/.test(wear), `wear a day: ${wear}`);
  check(/years (known after ten minutes|left)/.test(wear), `years of the card: ${wear}`);
  check(/[\d.]+ [MG]B written, [\d.]+ B a reading$/.test(wear), `bytes written: ${wear}`);
  check(await no_overflow(page), "nothing is wider than the window");
  const strangers = page.asked.filter((url) => !url.startsWith(`http://127.0.0.1:${port}/`));
  check(strangers.length === 0, `asked elsewhere: ${strangers}`);
  check(page.wrong.length === 0, page.wrong.join("; "));
  await shoot(page, "desktop");
  await page.locator("#filter").fill("humidity");
  await until("the filter", async () => (await shown(page, "#groups .group summary span")).startsWith("12 keys"));
  await page.context().close();
});

test("a phone shows all of it, light and dark", async ({ browser, port }) => {
  for (const [name, size] of [["phone", PHONE], ["phone-dark", { ...PHONE, dark: true }]]) {
    const page = await open(browser, `http://127.0.0.1:${port}/`, size);
    await until("lines in every plot", async () => {
      const counts = await drawn(page);
      return counts.length > 0 && counts.every((count) => count > 40);
    });
    check(await no_overflow(page), "nothing is wider than the window");
    check(page.wrong.length === 0, page.wrong.join("; "));
    await shoot(page, name);
    await page.context().close();
  }
});

test("a node that goes is shown as gone, and its return as well", async ({ browser }) => {
  const [port, line_port] = [await free_port(), await free_port()];
  let node = await start_node("gone", port, line_port);
  execFileSync(keel, ["put", "hall/temperature", "21.5"], { cwd: node.folder });
  const page = await open(browser, `http://127.0.0.1:${port}/`, DESKTOP);
  await until("the value", async () => (await page.locator(".plot .now").count()) === 1);
  node.kill("SIGKILL");
  await node.over;
  await until("the loss", async () => (await shown(page, "#state")).includes("unreachable"));
  check((await shown(page, "#link")).includes("no connection for"), "since when");
  check(await page.locator("main.cut").count() === 1, "old figures are grey");
  await shoot(page, "gone");
  node = await start_node("gone", port, line_port);
  execFileSync(keel, ["put", "hall/temperature", "99.25"], { cwd: node.folder });
  await until("the return", async () => (await shown(page, ".plot .now")) === "99.25");
  check((await shown(page, "#link")).includes("live"), "live again");
  await page.context().close();
});

test("a token is asked for, a wrong one refused, a right one kept", async ({ browser }) => {
  const [port, line_port] = [await free_port(), await free_port()];
  mkdirSync(join(work, "token"));
  writeFileSync(join(work, "token", "tokens"), `phone ${TOKEN}\n`);
  const node = await start_node("token", port, line_port, "token_file = \"tokens\"\n");
  execFileSync(keel, ["put", "hall/temperature", "21.5"], { cwd: node.folder });
  const page = await open(browser, `http://127.0.0.1:${port}/`, PHONE);
  await page.locator("#token").waitFor(WAIT);
  await shoot(page, "token");
  await page.locator("#token").fill("x".repeat(20));
  await page.locator("#token-form button").click();
  await until("the refusal", async () => (await shown(page, "#token-wrong")).includes("does not know"));
  await readable(page, "a refused token");
  await page.locator("#token").fill(TOKEN);
  await page.locator("#token-keep").check();
  await page.locator("#token-form button").click();
  await until("the value", async () => (await page.locator(".plot .now").count()) === 1);
  await page.reload();
  await until("the value again", async () => (await page.locator(".plot .now").count()) === 1);
  check(!(await page.locator("#token-form").isVisible()), "it is not asked for again");
  check(!page.url().includes(TOKEN) && page.asked.every((url) => !url.includes(TOKEN)), "the token is in no address");
  await page.context().close();
});

test("a cut upstream, programs from the network, jobs and reasons are shown", async ({ browser, port }) => {
  const { status, set, serve } = await rig_of("status", port);
  const upstream = (one) => [{ name: "cloud", kind: "mqtt", connected: true, backlog_readings: 0, ...one }];
  Object.assign(status.qos, {
    mode: "mimo", actuator: "cpufreq", speed: 0.6, admitted: 0.85, speed_held: "free", admitted_held: "low", tardiness_target: 0.8,
    tasks: [{ name: "valve", instances: 900, deadline_misses: 3, tardiness_mean: 0.7 }],
    last: { tardiness_mean: 0.74, miss_ratio: 0.01, data_ratio: 0.3 }, keys_fresh: 180, keys_temporal: 192,
  });
  Object.assign(status.wear, {
    gigabytes_per_day: 9, gigabytes_per_day_recent: 2.346, card_rated_terabytes: 30, card_years_left: 34.97,
    card_written_terabytes: 0.0125, bytes_per_reading: 61.25,
  });
  set({
    state: "degraded", reasons: [{ code: "shedding", text: "updates are left out to keep deadlines" }],
    upstream: upstream({}),
    mounts: [{ name: "tools", mounted: true, failing: false, connections: 1, reads: 1200, reads_local: 1164 }],
    power: [{ name: "ina219 5-0040", covers: "what the chip's shunt carries", watts: 4.25, why: null }],
    jobs: [{ name: "history", runs: 12, failing: false, place: "one board", why: "0.4 J against 2.1 J" }],
  });
  const page = await open(browser, await serve("1024"), DESKTOP);
  await until("the upstream", async () => (await page.locator("#tile-upstream").count()) === 1);
  check((await shown(page, "#tile-upstream")).includes("✓ connected"), "connected");
  check((await shown(page, "#state")).includes("degraded"), "the state");
  check((await shown(page, "#reasons")).includes("shedding"), "the reason");
  check((await shown(page, "#tile-streaming .main")).startsWith("97 %"), "the hit rate");
  check((await shown(page, "#tile-streaming")).includes("✓ server answers"), "the server");
  check((await shown(page, "#tile-power .main")).startsWith("4.25W"), "the power");
  check((await shown(page, "#tile-jobs")).includes("one board, 0.4 J against 2.1 J"), "the advice");
  check((await shown(page, "#tile-tardiness .main")).startsWith("0.74"), "tardiness");
  check((await shown(page, "#tile-control .main")) === "mimodrives both", "the mode and what it drives");
  const control = await shown(page, "#tile-control");
  check(control.includes("speed60 %") && control.includes("updates85 %"), `both knobs: ${control}`);
  check(control.includes("speed by cpufreq; updates, held low"), `what holds the knobs: ${control}`);
  check((await shown(page, "#tile-wear .main")) === "2.35GB a day", "wear a day, of late");
  check((await shown(page, "#tile-wear")).includes("35 years left of the card's rating"), "years of the card");
  check((await shown(page, "#tile-wear")).includes("12.5 GB written, 61.3 B a reading"), "bytes written");
  const unknown = { gigabytes_per_day: null, gigabytes_per_day_recent: null, card_rated_terabytes: null };
  set({ wear: { ...status.wear, ...unknown } });
  await until("no wear yet", async () => (await shown(page, "#tile-wear .main")) === "–known after a minute");
  check((await shown(page, "#tile-wear")).includes("the card's rating is not configured"), "no rating");
  const tools = (one) => [{ ...status.mounts[0], ...one }];
  // Until the mount's process has sent its figures, nobody knows whether the server answers.
  set({ mounts: tools({ connections: null }) });
  await until("unknown connections", async () => (await shown(page, "#tile-streaming")).includes("tools: mounted"));
  set({ mounts: tools({ connections: 0 }) });
  await until("no server", async () => (await shown(page, "#tile-streaming")).includes("✗ no server"));
  set({ mounts: tools({ connections: 1 }) });
  set({ upstream: upstream({ connected: false, backlog_readings: 123456, last_error: "connection refused" }) });
  await until("the cut", async () => (await shown(page, "#tile-upstream")).includes("✗ cut: connection refused"));
  check((await shown(page, "#tile-upstream .main")).startsWith("123,456"), "the backlog");
  await until("lines in every plot", async () => (await drawn(page)).every((count) => count > 40));
  await shoot(page, "full");
  set({ upstream: upstream({ backlog_readings: 12 }) });
  await until("the end of the cut", async () => (await shown(page, "#tile-upstream")).includes("✓ connected"));
  check(page.wrong.length === 0, page.wrong.join("; "));
  await page.context().close();
});

// Why no tree can be mounted here; null where one can.
function no_mount() {
  try {
    closeSync(openSync("/dev/fuse", "r+"));
  } catch (error) {
    return `/dev/fuse cannot be opened: ${error.code}`;
  }
  if (process.getuid() !== 0) return "only root can mount by itself";
  const set = readFileSync("/proc/self/status", "utf8").match(/^CapEff:\s*([0-9a-f]+)$/m);
  return set && !(BigInt(`0x${set[1]}`) & (1n << 21n)) ? "this root has no CAP_SYS_ADMIN" : null;
}

// A server of programs, and the tables of a node that mounts its tree and runs a program from it.
async function serve_tree(folder) {
  mkdirSync(join(folder, "tree/bin"), { recursive: true });
  const program = "#!/bin/sh\ncat \"${0%/*}/../table\" > /dev/null\nexec sleep 1000\n";
  writeFileSync(join(folder, "tree/bin/plant"), program, { mode: 0o755 });
  writeFileSync(join(folder, "tree/table"), randomBytes(1 << 20));
  execFileSync(keel, ["stream", "pack", "tree", "published"], { cwd: folder, stdio: "pipe" });
  const server = start(keel, ["stream", "serve", "published", "--listen", "127.0.0.1:0", "--insecure"], folder);
  const address = await until("the server of the tree", () => server.said.match(/127\.0\.0\.1:\d+/)?.[0]);
  return [server, `
[[mount]]
name = "tools"
server = "${address}"
directory = "tools"
insecure = true
[[task]]
name = "plant"
command = ["bin/plant"]
mount = "tools"
`];
}

test("a real node shows its alarms, its upstream, its mount, its job and its power", async ({ browser, skip }) => {
  const [port, line_port] = [await free_port(), await free_port()];
  const cannot = no_mount();
  if (cannot) skip(`the tile of mounts with a real mount; ${cannot}`);
  const [server, mount] = cannot ? [null, ""] : await serve_tree(join(work, "whole"));
  const listen = (port) => new Promise((done, failed) => {
    const server = http.createServer((request, response) => {
      request.resume().on("end", () => response.writeHead(204).end());
    });
    server.on("error", failed).listen(port, "127.0.0.1", () => done(server));
  });
  let upstream = await listen(0);
  const upstream_port = upstream.address().port;
  const cut = async () => {
    upstream.closeAllConnections();
    await new Promise((done) => { upstream.close(done); });
  };
  ends.push(cut);
  const node = await start_node("whole", port, line_port, `
[time]
wall_clock = "trusted"
[region]
file = "region"
create_mebibytes = 32
[[upstream]]
name = "cloud"
kind = "http"
url = "http://127.0.0.1:${upstream_port}/write"
linger_ms = 20
backoff_ms_min = 20
backoff_ms_max = 200
[[alarm]]
name = "hot"
pattern = "hall/+/temperature"
above = 60.0
command = ["true"]
[[job]]
name = "bearing"
kernel = "vibration"
key = "pump/vibration"
out = "bearing.json"
period_seconds = 1
window = 64
${mount}`);
  const put = (value) => execFileSync(keel, ["put", "hall/1/temperature", value], { cwd: node.folder });
  const now = Date.now();
  const rows = Array.from({ length: 300 }, (_, at) =>
    `pump vibration=${Math.sin(at * 1.57) + (at % 7) / 100} ${now - (300 - at) * 100}000000\n`);
  net.connect(line_port, "127.0.0.1").end(rows.join(""));
  put("21.5");
  const page = await open(browser, `http://127.0.0.1:${port}/`, DESKTOP);
  const status = async () => (await fetch(`http://127.0.0.1:${port}/api/v1/status`)).json();
  const tile = async (id, part = "") => (await page.locator(`#tile-${id}`).count()) === 1 ? shown(page, `#tile-${id} ${part}`) : "";
  const says = (what, id, text) => until(what, async () => (await tile(id)).includes(text));

  await until("the value", async () =>
    (await page.locator(".plot[data-key='hall/1/temperature'] .now").allTextContents()).includes("21.5"));

  await says("the alarm that is not raised", "alarms", "0raised1 alarm on 1 key");
  put("61.5");
  await until("the alarm", async () => /^Alarms1raised! hot hall\/1\/temperature since \d+ m?s: 61\.51 alarm/.test(await tile("alarms")));
  put("20");
  await says("the end of the alarm", "alarms", "0raised1 alarm");

  await says("the upstream", "upstream", "cloud: ✓ connected, 0 wait");
  await cut();
  for (let at = 0; at < 5; at += 1) put(String(20 + at));
  await until("the cut", async () => (await tile("upstream", ".main")).startsWith("5readings wait"));
  await until("why it is cut", async () => /cloud: ✗ cut: .+, 5 wait/.test(await tile("upstream")));
  check(await page.locator("#tile-upstream.is-cut").count() === 1, "the tile is marked");
  await until("the reason", async () => (await page.locator("#reasons").textContent()).includes("upstream_disconnected"));
  await shoot(page, "whole");
  upstream = await listen(upstream_port);
  await says("the end of the cut", "upstream", "cloud: ✓ connected, 0 wait");

  await until("the job and its place", async () => {
    const [job] = (await status()).jobs;
    return job.place && !job.failing && (await tile("jobs")).includes(`bearing: ${job.place}, ${job.why}`);
  });
  check(Number.parseInt(await tile("jobs", ".main"), 10) > 0, "runs of the job");

  const { power } = await status();
  if (power.length === 0) {
    skip("the tile of power with a real sensor; this machine has none");
    check(await page.locator("#tile-power").count() === 0, "no sensor, no tile");
  }
  for (const one of power) await says("the sensor", "power", one.watts === null ? `${one.name}: no value` : `${one.name}: `);

  if (server) {
    await until("reads of the program from the mount", async () => {
      const { mounts: [{ reads, reads_local: local }], tasks } = await status();
      const part = `${Math.round((local / reads) * 100)} %`;
      return tasks[0].state === "running" && reads > 0 && (await tile("streaming", ".main")).startsWith(part)
        && (await tile("streaming")).includes(`tools: ✓ server answers, ${reads.toLocaleString("en-GB")} reads`);
    });
    server.kill("SIGKILL");
    await says("the loss of the server", "streaming", "tools: ✗ no server");
  }
  check(page.wrong.length === 0, page.wrong.join("; "));
  await page.context().close();
});

test("every text has enough contrast", async ({ browser, port }) => {
  const page = await open(browser, `http://127.0.0.1:${port}/`, DESKTOP);
  await page.locator("#groups .group").first().waitFor(WAIT);
  await readable(page, "a node that is well");
  await page.context().close();
});

test("every text of a node in trouble has enough contrast", async ({ browser, port }) => {
  const { status, set, serve } = await rig_of("trouble", port);
  Object.assign(status.log, { durable_lag_ms: 9000 });
  Object.assign(status.flash, { operations_per_reading: 3, operations_per_reading_bound: 1.25 });
  Object.assign(status.store, { full: true });
  Object.assign(status.qos, {
    saturated: true, speed_held: "free", keys_fresh: 10, keys_temporal: 192,
    last: { tardiness_mean: 1.2, miss_ratio: 0.5, data_ratio: 0.3 },
  });
  const why = { failing: true, last_error: "permission denied" };
  set({
    alarms: [{ name: "hot", active: 1, watched: 1 }],
    alarms_active: [{ alarm: "hot", key: "hall/1/temperature", since_ms: 5000, value: 61.5 }],
    upstream: [{ name: "cloud", connected: false, backlog_readings: 12, last_error: "connection refused" }],
    mounts: [{ ...why, name: "tools", mounted: false, connections: 0, reads: 0, reads_local: 0 }],
    jobs: [{ ...why, name: "history", runs: 12, place: null, why: null }],
    reasons: [{ code: "store_full", text: "new readings are refused" }],
    state: "degraded",
  });
  const page = await open(browser, await serve("48"), DESKTOP);
  for (const state of ["degraded", "failed"]) {
    set({ state });
    await until(`the state ${state}`, async () => (await shown(page, "#state")).includes(state));
    await page.locator(`#reasons.${state} li`).waitFor(WAIT);
    for (const id of ["lag", "tardiness", "flash", "alarms", "upstream", "streaming", "jobs", "store"]) {
      check(await page.locator(`#tile-${id} .main.bad`).count() === 1, `${id} is marked as bad`);
    }
    for (const id of ["freshness", "control"]) {
      check(await page.locator(`#tile-${id} .main.warn`).count() === 1, `${id} is marked as a warning`);
    }
    check((await shown(page, "#tile-alarms")).includes("! hot hall/1/temperature"), "the alarm");
    check(await page.locator("#tile-upstream.is-cut").count() === 1, "the upstream is marked as cut");
    await readable(page, `a node that is ${state}`);
  }
  await page.context().close();
});

test("every text of old values, and of a node that is gone, has enough contrast", async ({ browser }) => {
  const [port, line_port] = [await free_port(), await free_port()];
  const node = await start_node("old", port, line_port, "[[key]]\npattern = \"#\"\nvalidity_ms = 100\n");
  execFileSync(keel, ["put", "hall/temperature", "21.5"], { cwd: node.folder });
  const page = await open(browser, `http://127.0.0.1:${port}/`, DESKTOP);
  await page.locator("#groups .group").first().waitFor(WAIT);
  await page.locator("#groups .group summary").first().click();
  await page.locator("#groups tr.stale").first().waitFor(WAIT);
  check(await page.locator("#groups summary .warn").count() === 1, "the group says that it is old");
  await readable(page, "old values");
  node.kill("SIGKILL");
  await node.over;
  await page.locator("main.cut").waitFor(WAIT);
  await page.locator("#link.bad").waitFor(WAIT);
  await readable(page, "a node that is gone");
  await page.context().close();
});

let passed = 0;
let failed = 0;
let skipped = 0;
const skip = (what) => {
  skipped += 1;
  console.log(`skipped: ${what}`);
};
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
try {
  const [port, line_port] = [await free_port(), await free_port()];
  await start_node("node", port, line_port);
  for (const [name, run] of tests) {
    try {
      await run({ browser, port, line_port, skip });
      passed += 1;
      console.log(`ok: ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED: ${name}: ${error.message}`);
      for (const context of browser.contexts()) await context.close();
    }
  }
} finally {
  await browser.close();
  for (const end of ends.reverse()) await end();
  rmSync(work, { recursive: true, force: true });
}
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exit(failed > 0 ? 1 : 0);
