// The sidecar's HTTP interface: every call carries the token if there is one; refusals become ApiError.

const BASE = new URL(".", document.baseURI);
const TOKEN = "triage-token";
const SILENCE_MS = 40_000; // the server says something every 15 s
const PAUSES_MS = [500, 1000, 2000, 4000, 8000, 15_000];

export class ApiError extends Error {
  constructor(status, problem, scope) {
    super(problem.detail ?? problem.title ?? `the server answered ${status}`);
    this.status = status;
    this.reason = problem.reason ?? "";
    this.column = problem.column ?? null;
    this.scope = problem.scope ?? scope;
  }
}

let memory = null; // where session storage is switched off

export function token() {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return memory;
  }
}

export function setToken(value) {
  memory = value || null;
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // kept in memory for as long as the page is open
  }
}

// How far this machine's clock is behind the server's, in seconds; from the answers' Date.
export const skew = { seconds: 0 };

async function call(path, options = {}) {
  const headers = { Accept: "application/json", ...options.headers };
  const known = token();
  if (known) headers.Authorization = `Bearer ${known}`;
  const answer = await fetch(new URL(path, BASE), { cache: "no-store", credentials: "same-origin", ...options, headers });
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (Number.isFinite(date)) skew.seconds = Math.round((date - Date.now()) / 1000);
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    // a proxy's page, not a problem document: the status has to do
  }
  const asked = /scope="?([^",]+)/.exec(answer.headers.get("WWW-Authenticate") ?? "");
  throw new ApiError(answer.status, problem, asked === null ? null : asked[1]);
}

export async function get(path) {
  return (await call(path)).json();
}

export async function getWithTag(path) {
  const answer = await call(path);
  return { body: await answer.json(), etag: answer.headers.get("ETag") };
}

export async function send(method, path, body, headers = {}) {
  const options = { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
  return (await call(path, options)).json();
}

// Enough for an Idempotency-Key; randomUUID exists on https and localhost only.
export function key() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// A run's events until `stop` is called. `heard` gets (event, data); `changed` gets {live, retryAt, error}.
export function stream(path, heard, changed) {
  const stopping = new AbortController();
  const reader = { lastId: "", failures: 0 };
  follow(path, reader, heard, changed, stopping.signal);
  return () => stopping.abort();
}

async function follow(path, reader, heard, changed, stopped) {
  while (!stopped.aborted) {
    let error = null;
    try {
      await readOnce(path, reader, heard, changed, stopped);
    } catch (failure) {
      error = failure;
    }
    if (stopped.aborted) return;
    const base = PAUSES_MS[Math.min(reader.failures, PAUSES_MS.length - 1)];
    const pause = base * (0.75 + Math.random() / 2);
    reader.failures += 1;
    changed({ live: false, retryAt: Date.now() + pause, error });
    await sleep(pause, stopped);
  }
}

async function readOnce(path, reader, heard, changed, stopped) {
  const silent = new AbortController();
  const end = () => silent.abort();
  stopped.addEventListener("abort", end);
  let watchdog = setTimeout(end, SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(reader.lastId ? { "Last-Event-ID": reader.lastId } : {}) };
    const answer = await call(path, { headers, signal: silent.signal });
    const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    reader.failures = 0;
    changed({ live: true, retryAt: null, error: null });
    let waiting = "";
    for (;;) {
      const { value, done } = await text.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(end, SILENCE_MS);
      const blocks = (waiting + value).split("\n\n");
      waiting = blocks.pop();
      for (const block of blocks) tell(block, reader, heard);
    }
  } finally {
    clearTimeout(watchdog);
    stopped.removeEventListener("abort", end);
  }
}

function tell(block, reader, heard) {
  let event = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) reader.lastId = line.slice(4);
    else if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data !== "") heard(event, JSON.parse(data));
}

function sleep(pause, stopped) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, pause);
    stopped.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
