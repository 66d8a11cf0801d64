// The live stream, read with fetch instead of EventSource, which cannot send a token.

const TOKEN = "keel-token";
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 10000;
// A sign of life comes every ten seconds; longer silence is a broken line.
const SILENCE_MS_MAX = 25000;

export function token() {
  return sessionStorage.getItem(TOKEN) ?? localStorage.getItem(TOKEN) ?? "";
}

export function setToken(text, keep) {
  sessionStorage.setItem(TOKEN, text);
  if (keep) localStorage.setItem(TOKEN, text);
  else localStorage.removeItem(TOKEN);
}

export class Refused extends Error {
  constructor(status, said) {
    super(said?.wrong ? `${said.thing} ${said.wrong}; ${said.remedy}` : `status ${status}`);
    this.status = status;
  }
}

// Asks the node; throws Refused when it refuses.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token()) headers.authorization = `Bearer ${token()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => null));
  return response;
}

// Splits what comes into events. `take` is called with name and text of each.
export class Events {
  constructor(take) {
    this.take = take;
    this.rest = "";
    this.id = null;
  }

  add(text) {
    // What is left of the last piece has no end yet, so only its seam can make one.
    const all = this.rest + text;
    let begin = 0;
    for (;;) {
      const end = all.indexOf("\n\n", begin);
      if (end < 0) break;
      this.event(all.slice(begin, end));
      begin = end + 2;
    }
    this.rest = all.slice(begin);
  }

  event(block) {
    let name = "message";
    let data = null;
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
      else if (line.startsWith("id: ")) this.id = line.slice(4);
    }
    if (data !== null) this.take(name, data);
  }
}

// Reads the stream for ever. `on` has: event(name, object), up(), down(why), denied().
export async function follow(path, on) {
  let retry_ms = RETRY_MS_MIN;
  const events = new Events((name, data) => on.event(name, JSON.parse(data)));
  for (;;) {
    let why = "the node has ended the stream";
    const abort = new AbortController();
    let watch = 0;
    const patience = () => {
      clearTimeout(watch);
      watch = setTimeout(() => abort.abort(), SILENCE_MS_MAX);
    };
    try {
      patience();
      const headers = events.id ? { "last-event-id": events.id } : {};
      const response = await ask(path, { headers, signal: abort.signal });
      events.rest = "";
      on.up();
      retry_ms = RETRY_MS_MIN;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        patience();
        events.add(value);
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        clearTimeout(watch);
        await on.denied();
        continue;
      }
      why = error instanceof Refused ? error.message : "no answer";
    }
    clearTimeout(watch);
    on.down(why);
    await new Promise((done) => setTimeout(done, retry_ms * (0.75 + Math.random() / 2)));
    retry_ms = Math.min(retry_ms * 2, RETRY_MS_MAX);
  }
}
