// Writing with the model: a text that it continues, or a conversation. It speaks OpenAI's interface to the
// node that this page came from.

import { element } from "./words.js";

const $ = (id) => document.getElementById(id);
// The server takes requests of up to 64 KiB; the oldest turns of a long conversation are left out.
const MOST_CHARACTERS = 12000;
let headersOf = null;
let turns = [];
let running = null;

// Shows the box to the owner of a node that has a model.
export function offerTalk(offered, headers) {
  headersOf = headers;
  $("talk").hidden = !offered;
}

function note(text) {
  $("talk-note").textContent = text;
}

function recent(messages) {
  let characters = 0;
  const kept = [];
  for (const message of messages.toReversed()) {
    characters += message.content.length;
    if (kept.length && characters > MOST_CHARACTERS) break;
    kept.unshift(message);
  }
  return kept;
}

// Sends a request, again while the model is still being loaded. Returns the response.
async function request(path, options, signal) {
  const began = Date.now();
  const waiting = setInterval(() => note(`Waiting for the model: ${Math.round((Date.now() - began) / 1000)} s.`), 1000);
  try {
    for (;;) {
      const response = await fetch(path, { ...options, cache: "no-store", signal });
      if (response.ok) return response;
      const { error } = await response.json().catch(() => ({}));
      if (error?.code !== "model_loading") throw new Error(error?.message ?? `the node refused it (${response.status})`);
    }
  } finally {
    clearInterval(waiting);
  }
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function entry(kind, text) {
  const written = element("span", { class: "written" }, text);
  const source = element("span", { class: "quiet" });
  $("talk-turns").append(element("li", { class: kind }, written, " ", source));
  return { written, source };
}

async function write() {
  const form = $("talk-form").elements;
  const text = form.text.value;
  const chat = form.kind.value === "chat";
  const asked = { role: "user", content: text };
  const shared = { stream: true, temperature: Number(form.temperature.value), max_tokens: Number(form.tokens.value) };
  entry("asked", text);
  const { written, source } = entry("answer", "");
  const signal = running.signal;
  const began = Date.now();
  let all = "";
  let reason = "";
  try {
    const models = await (await request("v1/models", { headers: headersOf() }, signal)).json();
    const words = { ...shared, model: models.data[0].id, ...(chat ? { messages: recent([...turns, asked]) } : { prompt: text }) };
    const options = { method: "POST", headers: headersOf({ "Content-Type": "application/json" }), body: JSON.stringify(words) };
    const answer = await request(chat ? "v1/chat/completions" : "v1/completions", options, signal);
    note("It writes.");
    for await (const event of events(answer)) {
      const round = /@round-(\d+)$/.exec(event.model ?? "")?.[1];
      if (round) source.textContent = `round ${Number(round).toLocaleString("en")}`;
      const choice = event.choices?.[0];
      all += (chat ? choice?.delta?.content : choice?.text) ?? "";
      reason = choice?.finish_reason ?? reason;
      written.textContent = all;
    }
    note(`${reason === "length" ? "It has reached the length that you allowed" : "It has ended by itself"}, after ${((Date.now() - began) / 1000).toFixed(1)} s.`);
  } catch (error) {
    note(error.name === "AbortError" ? "Stopped." : error instanceof TypeError ? "The node does not answer." : error.message);
  }
  if (chat && all) turns.push(asked, { role: "assistant", content: all });
  if (!all) written.parentElement.remove();
}

$("talk-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $("talk-ask").disabled = true;
  $("talk-stop").disabled = false;
  await write();
  running = null;
  $("talk-ask").disabled = false;
  $("talk-stop").disabled = true;
});
$("talk-stop").addEventListener("click", () => running?.abort());
$("talk-clear").addEventListener("click", () => {
  turns = [];
  $("talk-turns").replaceChildren();
  note("");
});
