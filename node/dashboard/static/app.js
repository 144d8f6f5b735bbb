// The page of a node: listens to its news and shows them. It talks to the node that it came from alone.

import { crowdChart, lossChart, rowOf } from "./charts.js";
import { offerTalk } from "./talk.js";
import { UNKNOWN, bytes, clock, count, element, fact, fill, limit, loss, percent, rate, scaled, seconds, short, shown, tile } from "./words.js";

const TOKEN = "distro-token";
const RETRY_MS = 3000;
const DIRECTORY_MS = 60000;
const NAMES_MS = 30000;
// The node says something each second; so long without a word is no pause for breath.
const SILENT_MS = 20000;
const PHASES = [["compute", "compute"], ["encode", "encode"], ["transfer", "transfer"], ["agree", "agree"], ["apply", "apply"]];
const OWN_ROUNDS = { counted: "counted", late: "late", left_out: "left out", no_work: "no work", not_needed: "not needed" };
const DAY_TITLE = "tokens of the last 24 hours, in rounds whose time this node knows";
const WEEK_TITLE = "tokens of the last seven days, in rounds whose time this node knows";
const ROUNDS_SHOWN = 24;
const CHIPS_SHOWN = 256;
const SPEED_ROWS = 16;
// From this part of the time at work on, as in status_rows.py, the energy counts as measured.
const FULLY_MEASURED = 0.95;
const TONES = { good: "Yes", busy: "Soon", rest: "At rest", warn: "Not quite", bad: "No", unknown: "Not known" };

const $ = (id) => document.getElementById(id);
let book = null;
let loading = false;
let told = null;
let mayAct = false;
let lastLine = null;
let lineRates = null;
let heard = 0;
const chart = lossChart($("chart"));
const crowd = crowdChart($("crowd"));
// What an observer shows is about the swarm: it has no part of its own.
const observes = () => told?.status.node.observer ?? false;

// The token comes behind the # of the link that `distro-node dashboard` prints: no server is sent it. It
// is kept for this tab, and taken out of the address, which others may see over a shoulder.
function takeToken() {
  const found = /^#token=([\w-]{16,128})$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(TOKEN, found[1]);
  history.replaceState(null, "", location.pathname);
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, "X-Distro-Token": token } : more;
}

async function ask(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || String(answer.status));
  return answer.json();
}

async function learnWhatIMay() {
  const rights = sessionStorage.getItem(TOKEN) ? await ask("api/token") : { acts: false, model: false };
  mayAct = rights.acts;
  showActs();
  offerTalk(rights.model, headers);
}

// --- what is shown ---------------------------------------------------------------------------

function showVerdict() {
  const { verdict, status } = told;
  document.body.removeAttribute("data-stale");
  say(verdict.tone, verdict.sentence, verdict.remedy);
  const progress = status.progress;
  $("progress").hidden = !progress;
  if (progress) {
    const unit = progress.kind === "starting_trainer" ? " s" : "";
    const write = progress.kind === "downloading" ? bytes : count;
    const sofar = progress.done ? `: ${write(progress.done)}${unit} so far` : "";
    $("progress-label").textContent = progress.total === null ? `${progress.what}${sofar}` : `${progress.what}: ${write(progress.done)} of ${write(progress.total)}`;
    if (progress.total) {
      $("progress-bar").max = progress.total;
      $("progress-bar").value = Math.min(progress.done, progress.total);
    } else {
      $("progress-bar").removeAttribute("value");
    }
  }
  $("name").textContent = told.name ?? "distro-node";
  document.body.toggleAttribute("data-observer", observes());
  $("who").textContent = `${observes() ? "seen by observer" : "you are"} ${short(status.node.peer)}, version ${status.node.version}, ${status.state}`;
  document.title = `${TONES[verdict.tone]}: ${told.name ?? "distro-node"}`;
}

// The link for everybody who looks does not change while a program runs.
let invited = false;
async function showJoining() {
  if (invited || !observes() || !told.status.swarm) return;
  invited = true;
  const { link } = await ask("api/invitation").catch(() => ({ link: undefined }));
  if (link === undefined) {
    invited = false;
    return;
  }
  $("joining").hidden = false;
  $("joining-code").hidden = link === null;
  if (link === null) $("joining-command").textContent = "This swarm takes guests alone: ask whoever founded it for a link.";
  else {
    $("joining-command").textContent = `distro-node join '${link}'`;
    $("joining-code").src = "api/invitation.svg";
  }
}

// The list of a bootstrap peer that keeps one; asked for again only now and then.
let listedAt = -Infinity;
async function showDirectory() {
  const now = performance.now();
  if (!observes() || now - listedAt < DIRECTORY_MS) return;
  listedAt = now;
  const { swarms } = await ask("api/directory").catch(() => ({ swarms: null }));
  $("directory").hidden = !swarms;
  fill($("directory-table").tBodies[0], (swarms ?? []).map((each) => element("tr", {},
    element("th", { scope: "row" }, each.name),
    element("td", {}, each.task),
    element("td", { class: "number" }, scaled(each.parameters)),
    element("td", { class: "number" }, count(each.members)),
    element("td", { class: "number" }, shown(each.tokens_per_second, count)),
    element("td", { class: "number" }, each.last_round === null ? count(each.rounds_done) : `${count(each.rounds_done)} of ${count(each.last_round)}`),
    element("td", {}, each.policy === "open" ? "anybody" : "guests"),
    element("td", {}, element("code", {}, each.invite)))));
}

// The names that members gave themselves. Anybody can take any name, so the peer id stands beside it.
let names = {};
let namedAt = -Infinity;
async function fetchNames() {
  const now = performance.now();
  if (now - namedAt < NAMES_MS) return;
  namedAt = now;
  names = await ask("api/names").catch(() => names);
}

function named(peer) {
  return Object.hasOwn(names, peer) ? `${names[peer]} (${short(peer)})` : short(peer);
}

function say(tone, sentence, remedy) {
  $("verdict").dataset.tone = tone;
  for (const [id, text] of [["tone", TONES[tone]], ["sentence", `${sentence}.`], ["remedy", remedy]]) {
    // Only what has changed: it is read aloud.
    if ($(id).textContent !== text) $(id).textContent = text;
  }
}

function showActs() {
  const state = told?.status.state;
  const working = told?.status.schedule.at_work;
  $("pause").disabled = !mayAct || !working || state === "leaving" || state === "finished";
  $("resume").disabled = !mayAct || working !== false || state === "leaving";
  $("leave").disabled = !mayAct || state === "leaving";
  for (const form of [$("limits"), $("hours")]) {
    for (const field of form.elements) field.disabled = !mayAct;
  }
  // Who may only look is shown no buttons; on a page for everybody nothing is said about them either.
  document.body.toggleAttribute("data-acts", mayAct);
  $("acts-note").textContent = mayAct ? note : "";
  $("look-only").hidden = mayAct || !told || observes();
}

// A field holds what is in force, unless it was changed and not sent: an empty one lifts a limit.
function hold(field, value) {
  if (field.value === (field.dataset.held ?? "")) field.value = field.dataset.held = value;
}

function mine() {
  return book?.members.find((member) => member.me) ?? null;
}

function showOwn() {
  const { training, line } = told.status;
  const me = mine();
  const own = training.own;
  const all = book?.rows.tokens.at(-1);
  fill($("own"), [
    tile("Rounds that counted", shown(me ? me.counted : null, count), `${count(own.counted)} since this start`),
    tile("Last rounds", shown(me && me.recent_of ? me : null, (m) => `${m.recent} of ${m.recent_of}`), missedOf(own)),
    tile("Tokens trained on", shown(me?.tokens, scaled), "in all your rounds"),
    tile("Your share", shown(me && all ? me.tokens / all : null, percent), "of all tokens"),
    tile("An update of yours", shown(own.update_bytes, bytes), own.bits_per_coefficient === null ? null : `${own.bits_per_coefficient.toFixed(2)} bits a coefficient`),
    tile("Sent", shown(line.sent_bytes, bytes), "since this start"),
    ...checkTiles(),
  ]);
}

// Rounds without a counted update of this node are four different things.
function missedOf(own) {
  const kinds = [[own.late, "late"], [own.left_out, "left out"], [own.no_work, "without work"], [own.not_needed, "not needed"]];
  const said = kinds.filter(([number]) => number).map(([number, word]) => `${count(number)} ${word}`);
  return said.length ? `${said.join(", ")} since this start` : "none late";
}

// Where work is checked: what others found in this node's, and its part of the votes.
function checkTiles() {
  const checks = told.status.swarm?.audits;
  const own = checks?.own;
  if (!own) return [];
  const votes = new Map(told.rows.map(([name, , about]) => [name, about])).get("your votes");
  return [
    tile("Checks of your work", count(own.audited), own.low ? `${count(own.low)} low, ${count(own.failed)} failed` : "none of them low"),
    tile("Your votes", own.votes ? percent(own.votes / checks.votes) : "none", own.counts ? votes : "your updates do not count"),
  ];
}

function showLearned() {
  const { training, swarm, seconds_left: left } = told.status;
  const last = swarm?.last_round ?? null;
  const final = swarm?.final_round ?? null;
  const first = book ? book.rows.loss.findIndex((value) => value !== null) : -1;
  const lossNote = told.rows.find(([name]) => name === "loss")?.[2];
  fill($("learned"), [
    tile("Round", shown(training.round, count), last === null ? "the run has no end" : `of ${count(last)}${left ? `, about ${seconds(left)} left` : ""}`),
    tile("Loss", shown(training.losses.training, loss), first >= 0 ? `${lossNote}; ${loss(book.rows.loss[first])} in round ${count(book.rows.round[first])}` : lossNote),
    // Whoever has no model measures nothing.
    ...(observes() ? [] : [tile("Held-out loss", shown(training.losses.heldout, loss), training.losses.heldout_round === null ? "on text that nobody trains on" : `after round ${count(training.losses.heldout_round)}`)]),
    tile("Tokens", shown(book?.rows.tokens.at(-1), scaled), "by all, since the founding"),
    tile("A round takes", shown(training.round_seconds, seconds), "in the last rounds"),
    tile("Speed", shown(speed(training.round_seconds), (each) => `${scaled(each)} tokens/s`), "of all, in the last rounds"),
    tile("Final", shown(final, (round) => `round ${count(round)}`), "no record up to it can change"),
    ...(swarm?.served_round == null ? [] : [tile("Served here", `round ${count(swarm.served_round)}`, "the parameters after this round, to any peer")]),
  ]);
}

// Tokens a second in the last rounds.
function speed(roundSeconds) {
  const rows = book?.rows;
  const first = Math.max(0, (rows?.tokens.length ?? 0) - 1 - SPEED_ROWS);
  const last = (rows?.tokens.length ?? 0) - 1;
  if (!roundSeconds || last <= first) return null;
  return (rows.tokens[last] - rows.tokens[first]) / ((rows.round[last] - rows.round[first]) * roundSeconds);
}

function wayOf(peer) {
  const found = told.status.reach?.connections.find((each) => each.peer === peer);
  return found?.way ?? null;
}

function showMembers() {
  const status = told.status;
  const known = new Map((book?.members ?? []).map((member) => [member.peer, member]));
  const now = new Map((status.swarm?.members ?? []).map((member) => [member.peer, member]));
  const awaited = new Map((status.swarm?.awaited ?? []).map((each) => [each.peer, each]));
  const leftOut = new Map((status.swarm?.audits?.excluded ?? []).map((each) => [each.peer, each.reason]));
  const all = book?.rows.tokens.at(-1);
  const peers = [...now.keys(), ...[...known.keys()].filter((peer) => !now.has(peer)).sort((a, b) => (known.get(b).left ?? Infinity) - (known.get(a).left ?? Infinity))];
  fill($("members").tBodies[0], peers.slice(0, CHIPS_SHOWN).map((peer) => {
    const account = known.get(peer);
    const [tone, said] = leftOut.has(peer) && now.has(peer)
      ? ["bad", `${now.get(peer).me ? "you, " : ""}excluded: ${leftOut.get(peer)}`]
      : stateOf(now.get(peer), account, awaited.get(peer), status);
    const late = account?.recent_of ? account : null;
    return element("tr", { "data-tone": tone, "data-peer": peer },
      element("th", { scope: "row", title: peer }, named(peer)),
      element("td", {}, element("span", { class: "state", title: capacityOf(now.get(peer)) }, [said, ...shareOf(now.get(peer))].join(", "))),
      element("td", { "data-name": "way" }, now.get(peer)?.me ? "–" : shown(wayOf(peer), String)),
      element("td", { class: "number", "data-name": "counted" }, shown(account?.counted, count)),
      element("td", { class: "number", "data-name": "last rounds" }, account && account.left !== null ? "–" : shown(late, (m) => `${m.recent} of ${m.recent_of}`)),
      element("td", { class: "number", "data-name": "tokens" }, shown(account && all ? account.tokens / all : null, percent)),
      element("td", { class: "number", "data-name": "a day", title: DAY_TITLE }, shown(account?.day_tokens, scaled)),
      element("td", { class: "number", "data-name": "a week", title: WEEK_TITLE }, shown(account?.week_tokens, scaled)),
      element("td", { class: "number", "data-name": "since" }, shown(account?.joined, (round) => `round ${count(round)}`)));
  }));
  const reach = status.reach;
  const relays = reach?.relays ?? [];
  const through = reach?.connections.filter((each) => each.way === "relayed") ?? [];
  const sentences = [];
  if (observes()) sentences.push("Whether members are there is seen by their updates.");
  else if (!reach) sentences.push("Who relays for whom is not known while this node is not connected.");
  else {
    sentences.push(relays.length ? `${relays.map(short).join(", ")} ${relays.length > 1 ? "carry" : "carries"} connections to this node.` : "Nobody carries connections to this node.");
    if (through.length) sentences.push(`${through.map((each) => short(each.peer)).join(", ")} ${through.length > 1 ? "are" : "is"} reached through a relay.`);
    sentences.push("Of relays between others this node does not know.");
  }
  $("relays").textContent = sentences.join(" ");
  showChecks();
}

// What came of checking each other's work, in a sentence each.
function showChecks() {
  const members = (number) => `${count(number)} ${number === 1 ? "member" : "members"}`;
  const checks = told.status.swarm?.audits;
  $("checked").hidden = !checks;
  if (!checks) return;
  const sentences = [
    `Members audit each other's work: ${count(checks.audits)} audits so far, ${count(checks.low)} of them low.`,
    `${members(checks.voters)} with votes, for work that others have audited.`,
  ];
  if (checks.disputes) sentences.push(`${count(checks.disputes)} ${checks.disputes === 1 ? "low audit is" : "low audits are"} being repeated.`);
  sentences.push(checks.excluded.length ? `${members(checks.excluded.length)} excluded, since audits of their work failed: their updates do not count.` : "Nobody is excluded.");
  $("checked").textContent = sentences.join(" ");
}

// Which part of the work a member has, and why it is not more.
function shareOf(member) {
  if (!member || member.share === null) return [];
  return [`${percent(member.share)} of the work`, ...(member.share_reason === null ? [] : [member.share_reason])];
}

function capacityOf(member) {
  return member && member.capacity !== null ? `says that it can train ${count(member.capacity)} sequences a day` : "";
}

function stateOf(member, account, awaited, status) {
  if (!member) {
    if (status.swarm?.members && account?.left !== null && account) {
      const ended = { silent: "fell silent", left: "left", expelled: "was expelled", dismissed: "was dismissed" }[account.why] ?? "gone";
      return [["left", "silent"].includes(account.why) ? "rest" : "bad", `${ended} in round ${count(account.left)}`];
    }
    return ["unknown", UNKNOWN];
  }
  if (member.me) return ["good", "you"];
  if (observes()) {
    // Who counts now and then is there; an observer need not be connected to it.
    if (!account?.recent_of) return ["busy", "new"];
    return account.recent ? ["good", "contributes"] : ["rest", "no counted update lately"];
  }
  if (awaited) return ["bad", `silent for ${seconds(awaited.silent_seconds)}; counts as gone after a lease of ${seconds(awaited.lease_seconds)}`];
  if (!member.connected) return ["bad", member.last_message_seconds === null ? "not connected" : `not connected, heard ${seconds(member.last_message_seconds)} ago`];
  return ["good", "connected"];
}

function showLine() {
  const { line, training, reach } = told.status;
  const used = (name, number, most) => {
    if (!lineRates) return fact(name, shown(null));
    const parts = [document.createTextNode(most ? `${rate(number)} of ${rate(most)}` : rate(number))];
    if (most) {
      const meter = element("meter", { min: 0, max: most, value: Math.min(number, most), "aria-label": `${name}, of its limit` });
      parts.push(meter);
    }
    return fact(name, parts, most ? null : "no limit");
  };
  const received = training.received_bytes_per_round;
  const dense = told.dense_bytes;
  const words = new Map(told.rows.map(([name, ...rest]) => [name, rest]));
  const reached = words.get("reach");
  fill($("line"), [
    ...used("Sending", lineRates?.sent, line.max_upload),
    ...used("Receiving", lineRates?.received, line.max_download),
    ...fact("In all", shown(line, (l) => `${bytes(l.sent_bytes)} up, ${bytes(l.received_bytes)} down`), "since this start"),
    ...fact("Updates", shown(received, (size) => `${bytes(size)} a round`), "of the others, received"),
    ...fact("All-reduce", shown(dense, (size) => `${bytes(size)} a round`), dense && received ? `a dense one in bfloat16: ${count(dense / received)} times as much` : "what a dense one in bfloat16 would bring"),
    ...fact("Reach", shown(reach ? reached?.[0] : null), reach ? reached?.[1] : null),
    ...fact("Peers", shown(line.peers, count), line.bootstrap ? "a bootstrap peer among them" : "no bootstrap peer among them"),
  ]);
  const { upload, download } = $("limits").elements;
  hold(upload, line.max_upload ? limit(line.max_upload) : "");
  hold(download, line.max_download ? limit(line.max_download) : "");
}

function showComputer() {
  const { training, schedule, swarm } = told.status;
  const trainer = training.trainer;
  const processor = trainer.device !== null && trainer.device.startsWith("cpu");
  fill($("computer"), [
    ...fact("Device", shown(trainer.device)),
    ...fact("Its memory", processor ? "that of the processor" : shown(trainer.device_bytes, bytes)),
    ...fact("Trainer", shown(trainer.process_bytes, bytes), "main memory of its process"),
    ...fact("Speed", shown(trainer.tokens_per_second, (number) => `${scaled(number)} tokens/s`), utilisationOf(trainer)),
    ...fact("Idle", shown(trainer.idle, percent), "of the time the trainer waits for the network or other members"),
    ...fact("Restarts", shown(trainer.restarts, count), "of the trainer process"),
    ...fact("Model", shown(swarm?.parameters, (n) => `${scaled(n)} parameters`)),
    ...fact("Hours", schedule.active ?? "always", schedule.until ? `that changes at ${schedule.until}` : null),
    ...schedule.holds.flatMap((hold) => fact("Held back", hold.text, hold.waived ? "overridden by your `resume`" : "the node resumes by itself")),
  ]);
  hold($("hours").elements.active, schedule.active ?? "");
  showEnergy();
}

// One line where nothing is known; it unfolds to the reasons.
let unfolded = false;
function showEnergy() {
  const { energy } = told.status;
  const known = energy.kwh !== null || energy.watts !== null;
  $("energy-said").textContent = !known ? "Energy: nothing can be measured here" : energy.kwh === null ? "Energy" : `Energy: ${energy.kwh.toFixed(3)} kWh`;
  if (known && !unfolded) {
    unfolded = true;
    $("energy-fold").open = true;
  }
  fill($("energy"), energyFacts());
}

// What the speed comes to, beside what the device could do.
function utilisationOf(trainer) {
  if (trainer.flops_per_second === null) return "by this node, averaged over the last rounds";
  const flops = `of yours: ${scaled(trainer.flops_per_second)}FLOP/s`;
  return trainer.utilisation === null ? flops : `${flops}, ${percent(trainer.utilisation)} of the device's speed in a matrix product`;
}

function energyFacts() {
  const energy = told.status.energy;
  const partly = energy.kwh !== null && energy.measured < FULLY_MEASURED ? "; partly measured" : "";
  return [
    ...fact("GPU draws", shown(energy.watts, (number) => `${Math.round(number)} W`), energy.why ?? "all programs on it"),
    ...fact("Energy", shown(energy.kwh, (number) => `${number.toFixed(3)} kWh`), energy.kwh === null ? null : `while at work since this start${partly}`),
    ...fact("A token", shown(energy.joules_per_token, (number) => `${number.toPrecision(3)} J`), `of yours that counted${partly}`),
  ];
}

function showScores() {
  const scores = told.status.scores;
  if (!scores) {
    fill($("scores"), [element("p", { class: "quiet" }, "Nothing has been measured yet: distro-node evaluate does.")]);
    return;
  }
  fill($("scores"), [
    element("p", { class: "quiet" }, `After round ${count(scores.round)}, ${scores.lm_eval === null ? "on held-out data" : `by lm-eval ${scores.lm_eval}`}.`),
    element("table", {},
      element("thead", {}, element("tr", {}, ...["Task", "Metric"].map((name) => element("th", { scope: "col" }, name)), element("th", { scope: "col", class: "number" }, "Value"))),
      element("tbody", {}, ...scores.tasks.map((score) => element("tr", {},
        element("th", { scope: "row" }, score.task),
        element("td", {}, score.metric),
        element("td", { class: "number" }, `${score.value.toFixed(4)}${score.error === null ? "" : ` ± ${score.error.toFixed(4)}`}`))))),
  ]);
}

function showSamples() {
  const samples = [...(book?.samples ?? [])].reverse();
  $("sampled").hidden = !samples.length;
  fill($("samples"), samples.map(([round, text]) => element("li", {}, element("span", { class: "quiet" }, `after round ${count(round)}: `), element("span", { class: "said" }, text))));
}

function showEvents() {
  const events = [...told.status.events].reverse();
  fill($("events"), events.length
    ? events.map((event) => element("li", { "data-kind": event.kind }, element("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time)), `round ${count(event.round)}: ${event.text}`))
    : [element("li", { class: "quiet" }, "Nothing has happened yet.")]);
}

function showRows() {
  fill($("rows"), told.rows.flatMap(([name, value, about]) => fact(name, value, about)));
}

function showPhases() {
  const phases = (book?.phases ?? []).slice(-ROUNDS_SHOWN).reverse();
  $("phases-note").textContent = phases.length ? "What a round waits for, as this node saw it; the legend has medians. Late: members whose update was due and is not in the round's record." : "This node has applied no round yet.";
  const sums = phases.map((each) => PHASES.reduce((sum, [name]) => sum + (each[name] ?? 0), 0));
  const longest = Math.max(...sums, 1e-9);
  fill($("phases").tBodies[0], phases.map((each, at) => {
    const known = PHASES.filter(([name]) => each[name] !== null);
    const said = known.map(([name, word]) => `${word} ${seconds(each[name])}`).join(", ");
    const bar = element("div", { class: "phase-bar", "aria-hidden": "true", title: said },
      ...known.map(([name]) => element("span", { colour: `var(--p-${name})`, width: `${(100 * each[name]) / longest}%` })));
    return element("tr", {},
      element("th", { scope: "row" }, count(each.round)),
      element("td", {}, bar, element("span", { class: "hidden" }, said || UNKNOWN)),
      element("td", { class: "number" }, known.length ? seconds(sums[at]) : shown(null)),
      element("td", {}, shown(each.own === null ? null : OWN_ROUNDS[each.own])),
      element("td", {}, lateIn(each)));
  }));
  showPhaseLegend(phases);
}

// Each phase with its median over the rounds shown.
function showPhaseLegend(phases) {
  fill($("phases-legend"), PHASES.map(([name, word]) => {
    const known = phases.map((each) => each[name]).filter((each) => each !== null).sort((a, b) => a - b);
    const median = known.length ? seconds(known[known.length >> 1]) : "–";
    return element("li", { colour: `var(--p-${name})` }, `${word} `, element("b", {}, median));
  }));
}

function lateIn(each) {
  if (!each.late) return shown(null);
  return each.late.length ? each.late.map(short).join(", ") : "–";
}

function bits(hex, peers) {
  const found = [];
  const last = hex.length - 1;
  for (let at = 0; at < peers.length; at++) {
    const digit = last - (at >> 2);
    if (digit >= 0 && (parseInt(hex[digit], 16) >> (at & 3)) & 1) found.push(peers[at]);
  }
  return found;
}

// --- the replay --------------------------------------------------------------------------------

let following = true;
let playing = null;

function showReplay() {
  const slider = $("replay");
  const last = (book?.rows.round.length ?? 0) - 1;
  slider.disabled = $("replay-play").disabled = last < 0;
  if (last < 0) {
    $("replay-said").textContent = "There is no round to look at yet.";
    fill($("replay-members"), []);
    return;
  }
  slider.max = last;
  if (following) slider.value = last;
  const at = Math.min(Number(slider.value), last);
  const rows = book.rows;
  const present = new Set(bits(rows.present[at], book.peers));
  const counted = new Set(bits(rows.counted[at], book.peers));
  const rounds = rows.rounds[at] > 1 ? `rounds ${count(rows.round[at] - rows.rounds[at] + 1)} to ${count(rows.round[at])}` : `round ${count(rows.round[at])}`;
  const when = rows.time[at] === null ? "at a time that this node did not see" : `at ${new Date(rows.time[at] * 1000).toLocaleString("en-GB")}`;
  const said = `${rounds}, ${when}: ${present.size} member${present.size === 1 ? "" : "s"}, ${rows.updates[at]} update${rows.updates[at] === 1 ? "" : "s"} counted, ${rows.loss[at] === null ? "nobody trained" : `loss ${loss(rows.loss[at])}`}, ${scaled(rows.tokens[at])} tokens and ${bytes(rows.bytes[at])} of updates since the founding`;
  slider.setAttribute("aria-valuetext", rounds);
  $("replay-said").textContent = `${said[0].toUpperCase()}${said.slice(1)}.`;
  fill($("replay-members"), book.peers.slice(0, CHIPS_SHOWN).map((peer) => {
    const is = counted.has(peer) ? "counted" : present.has(peer) ? "present" : "absent";
    const word = { counted: "counted", present: "a member, not counted", absent: "no member" }[is];
    return element("li", { "data-is": is, title: `${peer}: ${word}` }, short(peer), element("span", { class: "hidden" }, `: ${word}`));
  }));
  for (const each of [chart, crowd]) each.mark(following ? null : at);
}

function play(on) {
  clearInterval(playing);
  playing = null;
  $("replay-play").textContent = on ? "Stop" : "Play";
  $("replay-play").setAttribute("aria-pressed", String(on));
  if (!on) return;
  const slider = $("replay");
  if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
  following = false;
  // The whole run in some ten seconds.
  const step = Math.max(1, Math.ceil(Number(slider.max) / 100));
  playing = setInterval(() => {
    slider.value = Math.min(Number(slider.max), Number(slider.value) + step);
    if (Number(slider.value) >= Number(slider.max)) {
      following = true;
      play(false);
    }
    showReplay();
  }, 100);
  showReplay();
}

// --- the news ----------------------------------------------------------------------------------

function takeStatus(news) {
  const at = performance.now() / 1000;
  const line = news.status.line;
  if (lastLine && at > lastLine.at + 0.2) {
    const per = (now, before) => Math.max(0, now - before) / (at - lastLine.at);
    const fresh = { sent: per(line.sent_bytes, lastLine.sent), received: per(line.received_bytes, lastLine.received) };
    // Smoothed, over some five seconds.
    lineRates = lineRates ? { sent: 0.8 * lineRates.sent + 0.2 * fresh.sent, received: 0.8 * lineRates.received + 0.2 * fresh.received } : fresh;
  }
  lastLine = { at, sent: line.sent_bytes, received: line.received_bytes };
  told = news;
  showAll();
}

function showAll() {
  if (!told) return;
  showVerdict();
  showJoining();
  showDirectory();
  fetchNames();
  showActs();
  showOwn();
  showLearned();
  showMembers();
  showLine();
  showComputer();
  showScores();
  showEvents();
  showRows();
  $("foot").textContent = `As of ${clock(Date.now() / 1000)}. Up since ${new Date(told.status.node.started * 1000).toLocaleString("en-GB")}.${told.status.node.metrics ? ` Metrics for Prometheus: ${told.status.node.metrics}` : ""}`;
}

function showBook() {
  if (!book) return;
  showSamples();
  chart.show(book);
  crowd.show(book, chart.axis);
  const merged = book.rows.rounds.some((each) => each > 1);
  const untimed = book.rows.time.filter((each) => each === null).length;
  const notes = [];
  if (merged) notes.push("Old rounds are merged; a point is their mean.");
  if (chart.axis === "time" && untimed) notes.push("Rounds that this node did not see have no time, and are left out.");
  notes.push("Drag to zoom in, double click for all.");
  $("chart-note").textContent = notes.join(" ");
  showPhases();
  showReplay();
}

// A long run takes the node a while to read; the status goes on meanwhile.
async function fetchRounds() {
  loading = true;
  try {
    book = await ask("api/rounds");
  } finally {
    loading = false;
  }
  showBook();
  showAll();
}

async function takeRounds(news) {
  // What is missed now is said again with the next.
  if (loading) return;
  if (!book || !book.rows.round.length || book.generation !== news.generation || book.rows.round.length > 8192) return fetchRounds();
  const rows = book.rows;
  const first = rowOf(rows.round, news.rows.round[0]);
  const known = book.peers.length >= news.peers_at;
  const gap = !known || (first > 0 ? rows.round[first - 1] !== news.rows.round[0] - news.rows.rounds[0] : news.rows.round[0] !== rows.round[0]);
  if (gap) return fetchRounds();
  for (const [name, column] of Object.entries(news.rows)) rows[name].splice(first, Infinity, ...column);
  if (news.heldout.length) book.heldout = [...book.heldout.filter(([round]) => round < news.heldout[0][0]), ...news.heldout];
  if (news.samples.length) book.samples = [...book.samples.filter(([round]) => round < news.samples[0][0]), ...news.samples];
  book.peers.splice(news.peers_at, Infinity, ...news.peers);
  book.phases = news.phases;
  book.members = news.members;
  showBook();
}

async function listen() {
  const ended = new AbortController();
  const watch = setInterval(() => { if (Date.now() - heard > SILENT_MS) ended.abort(); }, 1000);
  heard = Date.now();
  try {
    const answer = await fetch("api/stream", { headers: headers(), cache: "no-store", signal: ended.signal });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    // Only now: what comes between the two is said again by the stream.
    for (const asked of [learnWhatIMay(), fetchRounds()]) asked.catch(() => ended.abort());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("");
      heard = Date.now();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) take(part);
    }
  } finally {
    clearInterval(watch);
    ended.abort();
  }
}

function take(part) {
  const kind = /^event: (\w+)$/m.exec(part)?.[1];
  const data = /^data: (.*)$/m.exec(part)?.[1];
  if (!kind || data === undefined) return;
  const news = JSON.parse(data);
  if (kind === "status") takeStatus(news);
  else if (kind === "rounds" && news) takeRounds(news).catch(() => {});
}

async function run() {
  for (;;) {
    let why = "";
    try {
      await listen();
    } catch (error) {
      why = error instanceof TypeError || error.name === "AbortError" ? "" : error.message;
    }
    document.body.setAttribute("data-stale", "");
    say(why ? "unknown" : "bad", why || "the node does not answer: what stands below is what it said last", why ? "" : "see whether distro-node join still runs; this page tries again by itself");
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

// --- what can be done ----------------------------------------------------------------------------

let note = "";
let sure = null;

async function act(name, words = {}) {
  const answer = await fetch(`api/act/${name}`, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(words) });
  return answer.ok ? (await answer.json()).error ?? "" : (await answer.text()).trim();
}

async function press(name, done) {
  note = "";
  note = (await act(name).catch(() => "the node does not answer")) || done;
  showActs();
}

$("pause").addEventListener("click", () => press("pause", "It pauses, and has left the swarm within seconds."));
$("resume").addEventListener("click", () => press("resume", "It goes on."));
$("leave").addEventListener("click", () => {
  const button = $("leave");
  clearTimeout(sure);
  const calm = () => {
    delete button.dataset.sure;
    button.textContent = "Leave";
  };
  if ("sure" in button.dataset) {
    calm();
    press("leave", "It says goodbye and ends.");
  } else {
    button.dataset.sure = "";
    button.textContent = "Leave: are you sure?";
    sure = setTimeout(calm, 5000);
  }
});
for (const [name, fields] of [["limits", ["upload", "download"]], ["hours", ["active"]]]) {
  $(name).addEventListener("submit", async (event) => {
    event.preventDefault();
    const form = $(name);
    const words = Object.fromEntries(fields.map((field) => [field, form.elements[field].value.trim() || null]));
    const problem = await act(name, words).catch(() => "the node does not answer");
    if (!problem) for (const field of fields) form.elements[field].dataset.held = form.elements[field].value;
    form.querySelector("[role=status]").textContent = problem || "Done; until the program ends.";
  });
}
$("axis").addEventListener("change", (event) => {
  if (book) chart.show(book, event.target.value);
  showBook();
});
for (const [id, factor] of [["zoom-in", 0.5], ["zoom-out", 2], ["zoom-all", Infinity]]) {
  $(id).addEventListener("click", () => { for (const each of [chart, crowd]) each.zoom(factor); });
}
$("replay").addEventListener("input", () => {
  following = Number($("replay").value) >= Number($("replay").max);
  play(false);
  showReplay();
});
$("replay-play").addEventListener("click", () => play(playing === null));
for (const id of ["csv", "json"]) {
  // Where reading needs the token, a plain link would be refused.
  $(id).addEventListener("click", async (event) => {
    event.preventDefault();
    const answer = await fetch($(id).getAttribute("href"), { headers: headers() });
    const link = element("a", { href: URL.createObjectURL(await answer.blob()), download: `contributions.${id}` });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
// On a telephone what is asked less often is folded.
const roomy = matchMedia("(min-width: 40rem)");
const unfold = () => { for (const each of document.querySelectorAll(".fold")) each.open = roomy.matches; };
roomy.addEventListener("change", unfold);
unfold();

takeToken();
addEventListener("hashchange", () => { takeToken(); learnWhatIMay().catch(() => {}); });
run();
