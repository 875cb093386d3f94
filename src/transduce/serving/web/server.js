// Requests to the server that this page came from. Errors are one plain sentence.

let key = sessionStorage.getItem("transduce-key") || "";

export function useKey(value) {
  key = value.trim();
  if (key) sessionStorage.setItem("transduce-key", key); // until the tab is closed
  else sessionStorage.removeItem("transduce-key");
}

export class ServerError extends Error {
  constructor(message, code) {
    super(sentence(message));
    this.code = code;
  }
}

function sentence(text) {
  const whole = text.replace(/^[a-z]+(?=[ ,:])/, (word) => word.charAt(0).toUpperCase() + word.slice(1)); // no file's name
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached; check that it is running and try again", "unreachable");
  }
  if (answer.ok) return answer;
  let details = {};
  try { details = (await answer.json()).error || {}; } catch { /* not of this server */ }
  let message = details.message || `The server answered with status ${answer.status}`;
  const wait = answer.headers.get("retry-after");
  if (wait) message += ` (in about ${wait} s)`;
  throw new ServerError(message, details.code);
}

const post = (value, signal) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value), signal });

function form(file, name, request) {
  const body = new FormData();
  body.append("request", JSON.stringify(request));
  body.append("file", file, name);
  return body;
}

export const models = async () => (await (await ask("api/models")).json()).models;

export const run = async (request, signal) => (await (await ask("api/run", post(request, signal))).json()).outputs[0];

export const look = async (request, signal) => (await ask("api/look", post(request, signal))).json();

export const hear = async (file, name, request, signal) => (await (await ask("api/run", { method: "POST", body: form(file, name, request), signal })).json()).outputs[0];

export const lookAtAudio = async (file, name, request, signal) => (await ask("api/look", { method: "POST", body: form(file, name, request), signal })).json();

/** A WebSocket for live speech, once the server is ready for it. */
export function liveSocket(model, rate) {
  const url = new URL("api/live", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.searchParams.set("model", model);
  url.searchParams.set("rate", rate);
  const plain = /^[\w.~!#$%&'*+^`|-]*$/.test(key); // what a name of a protocol may consist of
  if (key && !plain) url.searchParams.set("api_key", key);
  const socket = new WebSocket(url, key && plain ? ["transduce", `openai-insecure-api-key.${key}`] : []);
  socket.binaryType = "arraybuffer";
  return new Promise((resolve, reject) => {
    socket.onmessage = ({ data }) => {
      const { type, error } = JSON.parse(data);
      if (type === "ready") resolve(socket);
      else reject(new ServerError(error.message, error.code));
    };
    socket.onclose = () => reject(new ServerError("The server does not take another live session now; try again later", "refused"));
  });
}

/** Server-sent events of a stream as [event, data], until its end. */
export async function* stream(request, signal) {
  const answer = await ask("api/run", post({ ...request, stream: true }, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  let ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    waiting += value;
    const blocks = waiting.split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const found = /^event: (.*)\ndata: (.*)$/s.exec(block);
      if (!found) continue;
      const [, event, text] = found;
      const data = JSON.parse(text);
      if (event === "error") throw new ServerError(data.error.message, data.error.code);
      ended = event === "output";
      yield [event, data];
    }
  }
  if (!ended) throw new ServerError("The connection ended before the output was complete; try again", "incomplete");
}
