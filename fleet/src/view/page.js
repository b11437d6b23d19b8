// The page about a store. Its state is in the fragment of its address, so that links can be shared, and the back button
// works. Text from packets and hosts becomes text nodes only.
"use strict";

const VIEWS = { hosts: "Hosts", conversations: "Conversations", packets: "Packets", sql: "SQL", incidents: "Incidents", drops: "Drops" };
const SELECTION = ["from", "to", "host", "filter"];
const ROWS = 100;
const find = selector => document.querySelector(selector);
const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/* The page's state. */

let state = new URLSearchParams();
const get = name => state.get(name) ?? "";
const view = () => (get("view") in VIEWS ? get("view") : "hosts");

/** Returns the address of a state: this one with some changes. */
function address(changes) {
  const next = new URLSearchParams(state);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === undefined || value === null) next.delete(name);
    else next.set(name, value);
  }
  return `#${next}`;
}

function go(changes) {
  const next = address(changes);
  if (next === location.hash || (next === "#" && !location.hash)) show();
  else location.hash = next;
}

/* Elements. */

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "text", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== undefined && child !== null));
  return element;
}

const link = (text, changes) => make("a", { href: address(changes) }, text);
const plural = (number, word) => `${count.format(number)} ${word}${number === 1 ? "" : "s"}`;

function say(text, isError = false) {
  find("#state").textContent = text;
  find("#state").classList.toggle("error", isError);
}

function remark(remarks) {
  find("#remarks").replaceChildren(...remarks.map(text => make("li", {}, text)));
}

/* Questions to the server. A new view ends the questions of the last one. */

let asking = new AbortController();

class Refused extends Error {}

async function ask(path, parameters, signal = asking.signal) {
  const response = await fetch(`${path}?${parameters ?? ""}`, { signal });
  if (response.status === 401) {
    logIn();
    throw new Refused("");
  }
  if (!response.ok) throw new Refused((await response.text()).trim() || response.statusText);
  return response.json();
}

/** Returns the parameters of a question about the selected packets. */
function selected(more = {}) {
  const parameters = new URLSearchParams();
  const incident = get("incident");
  for (const name of SELECTION) {
    if (get(name) && !(incident && name !== "filter")) parameters.set(name, get(name));
  }
  if (incident) parameters.set("incident", incident);
  for (const [name, value] of Object.entries(more)) parameters.set(name, value);
  return parameters;
}

const rows = (sql, limit) => ask("api/rows", selected({ sql, count: limit }));

/** Shows how long an answer takes, then the answer or the reason why there is none. */
async function answering(work) {
  const began = performance.now();
  const seconds = () => ((performance.now() - began) / 1000).toFixed(1);
  const own = asking;
  say("asking …");
  const timer = setInterval(() => say(`asking … ${seconds()} s`), 500);
  try {
    const text = await work();
    if (own === asking) say(text ? `${text} (${seconds()} s)` : "");
  } catch (error) {
    if (own === asking) say(error instanceof Refused ? error.message : `no answer: ${error.message}`, true);
  } finally {
    clearInterval(timer);
  }
}

/* Tables. */

const isNumber = text => /^-?\d+(\.\d+)?$/.test(text);
const NAMES = ["sport", "dport", "protocol", "flow", "hash", "tcp_seq", "time_ns", "frame", "offset", "chunk", "pid", "vlan", "vni", "ethertype"];

/** Returns a table. `sorted` has the column and the direction, and makes the heads buttons; `first` adds a cell; `isSparse`
 *  leaves out columns without values. */
function table(columns, rows, { sorted, first, isSparse } = {}) {
  if (!rows.length && !sorted) return make("p", {}, "none");
  const shown = columns.map((name, at) => ({ name, at })).filter(({ name, at }) => !isSparse || name === sorted?.column || rows.some(row => row[at] !== ""));
  const numeric = new Set(shown.filter(({ at }) => rows.length && rows.every(row => row[at] === "" || isNumber(row[at]))).map(({ at }) => at));
  const head = ({ name, at }) => {
    if (!sorted) return make("th", { class: numeric.has(at) ? "number" : undefined, scope: "col" }, name);
    const order = sorted.column === name ? (sorted.descends ? "descending" : "ascending") : undefined;
    const turn = () => go({ ...FIRST, sort: name, order: order === "descending" ? "asc" : "desc" });
    const arrow = order ? (sorted.descends ? " ▾" : " ▴") : "";
    return make("th", { class: numeric.has(at) ? "number" : undefined, scope: "col", "aria-sort": order },
      make("button", { type: "button", id: `sort-${name}`, onclick: turn }, (isSparse ? name.replaceAll("_", " ") : name) + arrow));
  };
  const cell = (row, { name, at }) => {
    const text = row[at].replace(/^(\d{4}-\d\d-\d\d)T([\d:.]+)Z$/, "$1 $2");
    const isCount = numeric.has(at) && !NAMES.includes(name) && /^-?\d{1,15}$/.test(text);
    const kind = [numeric.has(at) ? "number" : "", text.length > 40 ? "long" : ""].join(" ").trim();
    return make("td", { class: kind || undefined, title: text.length > 40 ? text : undefined }, isCount ? count.format(Number(text)) : text);
  };
  const body = rows.map(row => make("tr", {}, first && make("td", {}, first(row)), ...shown.map(one => cell(row, one))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answer" },
    make("table", {}, make("thead", {}, make("tr", {}, first && make("th"), ...shown.map(head))), make("tbody", {}, ...body)));
}

/* Pages of a sorted table. A page is found by a row's cursor, so that the server never sorts all rows. */

/** Rows that are asked for at once: for conversations, the server adds up all packets for each question. */
const BLOCK = 10 * ROWS;
const PLACES = ["after", "before", "last"];
const FIRST = { after: "", before: "", last: "", at: "", skip: "" };
/** Successive rows of a sorted table, the number of rows in front of them, and of all rows; `null` while it is unknown. */
let block = { key: "", stop: new AbortController() };

/** Returns the rows of a block that are on the page, as two numbers; nothing if the block lacks some. */
function within({ cursors, after, before, hasBefore, hasAfter }) {
  const size = cursors.length;
  let from = 0, to = ROWS;
  if (get("last") || get("before")) {
    to = get("last") ? (hasAfter ? -1 : size) : get("before") === before ? size : cursors.indexOf(get("before"));
    if (to < 0) return null;
    from = to - ROWS;
    if (from < 0 && !hasBefore) [from, to] = [0, Math.min(ROWS, size)];
  } else {
    from = get("after") ? (get("after") === after ? 0 : cursors.indexOf(get("after")) + 1 || -1) : hasBefore ? -1 : 0;
    to = from + ROWS;
    if (to > size && !hasAfter) to = size;
  }
  return from >= 0 && to <= size ? [from, to] : null;
}

/** Asks for the rows around a page. */
async function blockOf(key, parameters) {
  const question = new URLSearchParams(parameters);
  const place = PLACES.find(name => get(name));
  if (place) question.set(place, get(place));
  question.set("count", BLOCK);
  const answer = await ask("api/rows", question);
  const { rows, cursors = [], more } = answer;
  const isTurned = place === "before" || place === "last";
  const old = block.key === key ? block : { start: null, total: null, cursors: [] };
  const found = old.start === null ? -1 : old.cursors.indexOf(get(place));
  let start = place ? null : 0;
  if (found >= 0) start = old.start + (isTurned ? found - rows.length : found + 1);
  if (isTurned && !more) start = 0;
  if (place === "last" && old.total !== null) start = old.total - rows.length;
  if (block.key !== key) block.stop.abort();
  const stop = block.key === key ? block.stop : new AbortController();
  const hasAfter = isTurned ? place === "before" : more;
  const total = hasAfter || start === null ? old.total : start + rows.length;
  const own = { ...answer, cursors, key, parameters, start, total, stop, view: view(), after: get("after"), before: get("before"), hasBefore: isTurned ? more : Boolean(place), hasAfter };
  if (old.located && start !== null) own.located = old.located.then(() => { own.total ??= old.total; });
  block = own;
  return own;
}

/** Counts the rows of the table, and the ones in front of the block unless they are known. */
async function locate(own) {
  const question = new URLSearchParams(own.parameters);
  if (own.start === null && own.cursors.length) question.set("after", own.cursors[0]);
  const { rows: [[total, before]] } = await ask("api/position", question, own.stop.signal);
  own.total = Number(total);
  own.start ??= Math.max(0, Number(before) - 1);
}

/** Returns the order that the address asks for; `ties` are the columns that tell rows with equal values apart. */
function orderOf(column, ties) {
  const first = get("sort") || column;
  return [[first, get("order") !== "asc"], ...ties.filter(name => name !== first).map(name => [name, false])];
}

/** Shows a page of a table: `order` has columns and directions that together differ in any two rows. */
async function showPages(main, sql, order, options = {}) {
  const parameters = selected({ sql });
  for (const [name, descends] of order) parameters.append(descends ? "desc" : "asc", name);
  const key = String(parameters);
  let own = block;
  let span = own.key === key ? within(own) : null;
  if (!span) {
    own = await blockOf(key, parameters);
    span = within(own) ?? (get("before") || get("last") ? [Math.max(0, own.rows.length - ROWS), own.rows.length] : [0, Math.min(ROWS, own.rows.length)]);
  }
  const [from, to] = span;
  const { columns, rows, cursors, hasBefore, hasAfter } = own;
  remark(own.remarks);
  const step = (text, place, changes, possible) => make("button", { type: "button", id: `${text}-${place}`, disabled: !possible, onclick: () => go({ ...FIRST, ...changes }) }, text);
  const [isBefore, isAfter] = [hasBefore || from > 0, hasAfter || to < rows.length];
  const places = [];
  const pages = place => {
    places.push(make("span", {}));
    return make("div", { class: "bar" }, step("First", place, {}, isBefore), step("Previous", place, { before: cursors[from] }, isBefore), places.at(-1),
      step("Next", place, { after: cursors[to - 1] }, isAfter), step("Last", place, { last: "1" }, isAfter));
  };
  const tell = counted => {
    const span = own.start === null ? plural(to - from, "row") : to > from ? `${count.format(own.start + from + 1)} to ${count.format(own.start + to)}` : "none";
    const text = own.total !== null ? `${span} of ${count.format(own.total)}` : `${span} of ${counted}`;
    for (const place of places) place.textContent = text;
  };
  const [column, descends] = order[0];
  const choice = options.isSparse && make("label", { class: "box" }, "Sort by", make("select", { id: "sort", onchange: event => go({ ...FIRST, sort: event.target.value }) },
    ...columns.map(name => make("option", { value: name, selected: name === column }, name.replaceAll("_", " ")))));
  const above = pages("above");
  if (choice) above.append(choice);
  main.append(above, table(columns, rows.slice(from, to), { ...options, sorted: { column, descends } }), pages("below"));
  tell("… (counting)");
  if (own.start === null || own.total === null) {
    own.located ??= locate(own);
    own.located.then(() => tell(""), () => tell("an unknown number"));
  }
  return to - from;
}

/* Hosts. */

/** Returns nanoseconds as milliseconds. */
const ms = ns => ns / 1e6;
const date = time => new Date(time).toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
const bytes = size => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const step = size ? Math.min(Math.floor(Math.log2(size) / 10), units.length - 1) : 0;
  return `${(size / 1024 ** step).toFixed(step ? 1 : 0)} ${units[step]}`;
};

function age(time) {
  const [size, unit] = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"]].find(([size]) => time >= size) ?? [1000, "s"];
  return `${Math.max(0, Math.floor(time / size))} ${unit}`;
}

/** Returns the hosts of a listing and of the agents, the ones with problems first. */
function hostsOf(listing, agents) {
  const hosts = new Map();
  const host = name => {
    if (!hosts.has(name)) hosts.set(name, { name, runs: [], pauses: [], lost: 0, unknown: 0, evicted: 0, spooled: 0, recorded: 0, gaps: 0, agent: null });
    return hosts.get(name);
  };
  for (const run of listing.captures) {
    const own = host(run.host);
    own.runs.push(run);
    own.recorded += run.recorded;
    own.unknown += run.unknown;
    own.evicted += run.evicted - run.pruned;
    own.spooled += run.spooled;
    own.gaps += run.gaps.length;
    own.lost += Object.values(run.lost).reduce((sum, one) => sum + one, 0);
  }
  for (const pause of listing.not_recording) host(pause.host).pauses.push(pause);
  for (const agent of agents) host(agent.host).agent = agent;
  for (const own of hosts.values()) Object.assign(own, health(own));
  return [...hosts.values()].sort((one, other) => other.level - one.level || one.name.localeCompare(other.name));
}

function health(host) {
  const bad = [], warn = [];
  if (host.pauses.some(pause => pause.to_ns === null)) bad.push("not recording");
  if (host.agent?.silent) bad.push("agent silent");
  else if (host.agent?.error) bad.push(host.agent.error);
  const captures = host.agent?.state?.captures ?? [];
  for (const { capture, phase, error } of captures) {
    if (phase === "waiting" || phase === "refused") bad.push(`'${capture.name}' ${phase}${error ? `: ${error}` : ""}`);
  }
  if (host.unknown || host.gaps) bad.push(`${plural(host.unknown, "packet")} unknown`);
  const past = host.pauses.filter(pause => pause.to_ns !== null).length;
  if (past) warn.push(plural(past, "pause"));
  if (host.lost) warn.push(`${count.format(host.lost)} lost`);
  if (host.evicted) warn.push(`${count.format(host.evicted)} evicted`);
  if (host.spooled) warn.push(`${count.format(host.spooled)} in the spool`);
  const open = host.runs.some(run => run.ended === null);
  const last = ms(Math.max(0, ...host.runs.map(run => run.last_ns ?? 0)));
  const running = captures.filter(({ phase }) => phase === "running").length;
  const well = running ? `${plural(running, "capture")} running` : open ? "no end record: recording, or killed" : host.runs.length ? "ended" : "nothing stored";
  const text = [...bad, ...warn].join(", ") || well;
  return { level: bad.length ? 2 : warn.length ? 1 : 0, text, last: last ? ` · last ${age(Date.now() - last)} ago` : "" };
}

/** Returns the start and the end of a run in milliseconds. */
function spanOf(run, now) {
  const from = ms(Math.min(run.began_ns ?? Infinity, run.first_ns ?? Infinity));
  const to = Math.max(ms(run.last_ns ?? 0), from);
  return [from, run.ended === null && run.last_ns === null ? Math.min(now, from) : to];
}

const WIDTH = 1000;

function timeline(host, [from, to], now) {
  const x = time => Math.max(0, Math.min(WIDTH, (time - from) / (to - from) * WIDTH));
  const picture = make("svg", { class: "line", viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", role: "img", "aria-label": `${host.name}: ${host.text}` });
  const draw = (kind, [begin, end], title, [top, height]) => {
    if (end < from || begin > to) return;
    const left = Math.min(x(begin), WIDTH - 2);
    const select = () => go({ view: "packets", host: host.name, from: String(Math.floor(begin / 1000)), to: String(Math.ceil(end / 1000) + 1) });
    picture.append(make("rect", { class: kind, x: left, width: Math.max(2, x(end) - left), y: top, height, onclick: select }, make("title", {}, title)));
  };
  for (const run of host.runs) {
    const span = spanOf(run, now);
    if (!Number.isFinite(span[0])) continue;
    const end = run.ended === null ? "no end record" : `ended: ${run.ended}`;
    draw(run.ended === null ? "run open" : "run", span, `${run.capture}: ${date(span[0])} to ${date(span[1])}, ${plural(run.recorded, "packet")}, ${end}`, [3, 10]);
    if (run.gaps.length || run.unknown) draw("gap", span, `${run.capture}: ${plural(run.unknown, "packet")} unknown`, [13, 3]);
  }
  for (const pause of host.pauses) {
    const span = [ms(pause.from_ns), pause.to_ns === null ? now : ms(pause.to_ns)];
    draw("pause", span, `${pause.capture}: nothing recorded from ${date(span[0])} ${pause.to_ns === null ? "on" : `to ${date(span[1])}`}`, [0, 16]);
  }
  return picture;
}

function axis([from, to]) {
  const picture = make("svg", { class: "line axis", role: "presentation" });
  const [begin, end] = to - from > 86_400_000 ? [0, 16] : to - from > 60_000 ? [5, 19] : [11, 23];
  [0, 25, 50, 75, 100].forEach((part, at) => {
    const text = new Date(from + (to - from) * part / 100).toISOString().replace("T", " ").slice(begin, end);
    picture.append(make("line", { x1: `${part}%`, x2: `${part}%`, y1: 0, y2: 4 }));
    if (at % 2 === 0) {
      picture.append(make("text", { x: `${part}%`, y: 15, "text-anchor": ["start", "", "middle", "", "end"][at] }, text));
    }
  });
  return picture;
}

const key = (kind, text) => make("span", {}, make("svg", { viewBox: "0 0 1 1" }, make("rect", { class: kind, width: 1, height: 1 })), text);
const figure = (text, label, kind) => make("div", {}, make("b", { class: kind }, text), make("span", {}, label));

let session = null, listing = null;

async function list() {
  listing = await ask("api/store");
  const names = [...new Set(listing.captures.map(run => run.host))].sort();
  find("#hosts").replaceChildren(...names.slice(0, 5000).map(name => make("option", { value: name })));
  return listing;
}

async function showHosts(main) {
  const { captures, total } = await list();
  const status = session.has_agents ? await ask("api/fleet").catch(error => remark([error.message])) : null;
  const now = Date.now();
  const all = hostsOf(listing, status?.hosts ?? []);
  const size = captures.reduce((sum, run) => sum + run.bytes, 0);
  const bad = all.filter(host => host.level > 0).length;
  const spans = captures.map(run => spanOf(run, now)).filter(([from]) => Number.isFinite(from));
  const open = listing.not_recording.some(pause => pause.to_ns === null);
  const range = [spans.reduce((least, [from]) => Math.min(least, from), Infinity), spans.reduce((most, [, to]) => Math.max(most, to), open ? now : 0)];
  if (range[1] - range[0] < 1000) range[1] = range[0] + 1000;
  const lists = make("div");
  const filter = make("input", { type: "search", "aria-label": "Names of hosts that are shown", placeholder: "names of hosts", value: get("names") });
  const fill = () => {
    const shown = all.filter(host => host.name.includes(filter.value));
    lists.replaceChildren(...shown.map(host => make("div", { class: "host" },
      link(host.name, { view: "packets", host: host.name }),
      timeline(host, range, now),
      make("span", {}, make("span", { class: ["good", "warn", "bad"][host.level] }, host.text), `${host.last} · ${plural(host.recorded, "packet")}`))));
  };
  filter.addEventListener("input", fill);
  filter.addEventListener("change", () => history.replaceState(null, "", address({ names: filter.value })));
  fill();
  main.append(
    make("div", { class: "figures" },
      figure(count.format(all.length), "hosts"),
      figure(count.format(bad), "with remarks", bad ? "warn" : "good"),
      figure(count.format(total.recorded), "packets recorded"),
      figure(count.format(total.stored), "in the store"),
      figure(count.format(total.on_host), "on their hosts"),
      figure(count.format(total.spooled), "in the spool"),
      figure(count.format(total.evicted), "evicted"),
      figure(count.format(total.unknown), "unknown", total.unknown ? "bad" : undefined),
      figure(bytes(size), "size of the packets")),
    make("div", { class: "bar" }, filter,
      make("div", { class: "keys" }, key("run", "recorded"), key("run open", "no end record"), key("pause", "nothing recorded"), key("gap", "packets unknown"), make("span", {}, "times are UTC"))));
  if (all.length) main.append(make("div", { class: "host" }, make("span"), axis(range), make("span")), lists);
  return `${plural(all.length, "host")}, ${plural(captures.length, "run")}`;
}

/* Conversations. */

const quoted = name => `"${name.replaceAll('"', '""')}"`;

/** Returns a filter for the packets of a row with addresses, ports and a protocol. */
function filterOf(row) {
  const parts = [];
  const protocol = { 6: "tcp", 17: "udp", 132: "sctp", 1: "icmp", 58: "icmp6" }[row.protocol];
  if (protocol) parts.push(protocol);
  for (const name of ["src", "dst"]) if (row[name]) parts.push(`host ${row[name]}`);
  if ([6, 17, 132].includes(Number(row.protocol))) for (const name of ["sport", "dport"]) if (row[name]) parts.push(`port ${row[name]}`);
  return [...new Set(parts)].join(" and ");
}

/** Returns the selection of a conversation's packets. */
function packetsOf(row) {
  const seconds = text => Date.parse(text) / 1000;
  const changes = { view: "packets", filter: filterOf(row), sort: "", order: "", where: "", ...FIRST };
  if (row.host) changes.host = row.host;
  if (row.first && row.last && !get("incident")) {
    changes.from = String(Math.floor(seconds(row.first)));
    changes.to = String(Math.ceil(seconds(row.last) + 0.001));
  }
  return changes;
}

async function showConversations(main) {
  const where = make("input", { name: "where", placeholder: "bytes > 1000000 AND dport = 443", value: get("where"), spellcheck: "false", autocomplete: "off" });
  main.append(make("form", { onsubmit: event => { event.preventDefault(); go({ ...FIRST, where: where.value }); } },
    make("label", { class: "wide" }, "Condition in SQL on the columns", where), make("button", {}, "Apply")));
  const sql = `SELECT * FROM flows${get("where") ? ` WHERE (${get("where")}\n)` : ""}`;
  const order = orderOf("bytes", ["first", "flow", "nat_flow"]);
  const named = row => Object.fromEntries(block.columns.map((name, at) => [name, row[at]]));
  const shown = await showPages(main, sql, order, { isSparse: true, first: row => link("packets", packetsOf(named(row))) });
  return shown ? plural(shown, "conversation") : "no conversations";
}

/* Packets. */

const BARS = 200;

/** Shows the number of packets over time; a bar selects its time. */
async function chart(box) {
  const sql = `SELECT (time_ns - a) / w AS bar, count(*) AS packets, sum(length) AS bytes, min(a) AS a, min(w) AS w FROM packets
    CROSS JOIN (SELECT min(time_ns) AS a, (max(time_ns) - min(time_ns)) / ${BARS} + 1 AS w FROM packets) GROUP BY bar ORDER BY bar`;
  const { rows: bars } = await rows(sql, BARS + 1);
  const most = Math.max(1, ...bars.map(bar => Number(bar[1])));
  const picture = make("svg", { class: "chart", viewBox: `0 0 ${BARS} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `packets over time, at most ${most} in a bar` });
  const span = bar => [0, 1].map(end => ms(Number(bar[3]) + (Number(bar[0]) + end) * Number(bar[4])));
  for (const bar of bars) {
    const [from, to] = span(bar);
    const height = Math.max(1, Number(bar[1]) / most * 100);
    const select = () => go({ from: String(from / 1000), to: String(to / 1000) });
    picture.append(make("rect", { class: "hist", x: bar[0], y: 100 - height, width: 0.9, height, onclick: select },
      make("title", {}, `${date(from)} to ${date(to)}: ${plural(Number(bar[1]), "packet")}, ${bytes(Number(bar[2]))}`)));
  }
  if (bars.length) box.replaceChildren(picture, axis([span(["0", ...bars[0].slice(1)])[0], span([String(BARS), ...bars[0].slice(1)])[0]]));
}

async function showPackets(main) {
  const most = Number(get("count")) || 500;
  const file = new URLSearchParams(selected());
  const box = (name, text) => make("label", { class: "box" }, make("input", { type: "checkbox", id: `box-${name}`, checked: get(name) === "1", onchange: event => go({ [name]: event.target.checked ? "1" : "" }) }), text);
  const counts = make("select", { "aria-label": "Packets shown", onchange: event => go({ count: event.target.value }) },
    ...[100, 500, 2000, 10000].map(number => make("option", { value: number, selected: number === most }, `${count.format(number)} packets`)));
  main.append(make("div", { class: "bar" }, counts, box("verbose", "details"), box("bytes", "bytes"), box("chart", "over time"),
    make("a", { class: "button", href: `packets.pcapng?${file}`, download: "packets.pcapng" }, "Download all as pcapng")));
  const times = make("div");
  main.append(times);
  if (get("chart") === "1") await chart(times).catch(error => times.replaceChildren(make("p", { class: "bad" }, error.message)));
  // Packets have no number: a page begins at the time of the last packet shown, without the packets of this time shown before.
  const at = get("incident") ? "" : get("at"), skip = at ? Number(get("skip")) || 0 : 0;
  const asked = { count: Math.min(most + skip, MOST_LINES) };
  if (at) asked.from = at;
  for (const name of ["verbose", "bytes"]) if (get(name) === "1") asked[name] = "1";
  const answer = await ask("api/lines", selected(asked));
  remark(answer.remarks);
  const all = packetsIn(answer.lines);
  const isCut = answer.more || all.length >= asked.count;
  // The end of a long answer may be a part of a packet.
  if (answer.more) all.pop();
  const shown = all.slice(skip);
  const time = packet => /^[\d-]+ [\d:.]+/.exec(packet[0])?.[0];
  const last = shown.length ? time(shown.at(-1)) : "";
  const step = (text, changes, possible) => make("button", { type: "button", id: `${text}-packets`, disabled: !possible, onclick: () => go(changes) }, text);
  main.append(make("div", { class: "bar" }, step("First", { ...FIRST }, at),
    step("Next", { at: last, skip: all.filter(packet => time(packet) === last).length }, isCut && last && !get("incident")), make("span", {}, at ? `from ${at} on` : "")));
  main.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Packets" }, make("pre", {}, shown.flat().join("\n"))));
  return shown.length ? `${plural(shown.length, "packet")}${isCut ? ", and there are more" : ""}` : "no packets";
}

const MOST_LINES = 10_000;

/** Returns the lines of each packet; the first of them has no space at its beginning. */
function packetsIn(lines) {
  const packets = [];
  for (const line of lines) {
    if (/^\s/.test(line) && packets.length) packets.at(-1).push(line);
    else packets.push([line]);
  }
  return packets;
}

/* SQL. */

const EXAMPLES = {
  "Hosts that send most": "SELECT host, src, count(*) AS packets, sum(length) AS bytes\nFROM packets GROUP BY host, src ORDER BY bytes DESC LIMIT 20",
  "Names in TLS and DNS": "SELECT coalesce(tls_server_name, dns_name) AS name, count(*) AS packets\nFROM packets WHERE coalesce(tls_server_name, dns_name) IS NOT NULL\nGROUP BY name ORDER BY packets DESC LIMIT 50",
  "Resets and retransmissions": "SELECT host, src, dst, dport, count(*) FILTER (WHERE reset) AS resets, count(*) FILTER (WHERE retransmission) AS resent\nFROM packets WHERE reset OR retransmission\nGROUP BY host, src, dst, dport ORDER BY resets + resent DESC LIMIT 50",
  "Packets each minute": "SELECT date_trunc('minute', time) AS minute, count(*) AS packets, sum(length) AS bytes\nFROM packets GROUP BY minute ORDER BY minute",
};
const KEYWORDS = ["SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "DESC", "DISTINCT", "COUNT(*)", "SUM(", "AVG(", "MIN(", "MAX(", "BETWEEN", "IS NOT NULL", "in_net(src, '10.0.0.0/8')", "date_trunc('minute', time)", "packets", "flows", "sightings"];
let columns = null;

/** Returns the names of the columns of a table. */
const columnsOf = async table => (await ask("api/rows", new URLSearchParams({ sql: `SELECT * FROM ${table} LIMIT 0`, count: 1 }))).columns;

/** Returns the words that complete a query. */
async function words() {
  columns ??= [...new Set([...await columnsOf("packets"), ...await columnsOf("flows"), ...await columnsOf("sightings")])];
  return [...columns, ...KEYWORDS];
}

/** Offers words while a query is typed: arrows choose, Tab or Enter accepts, Escape closes. */
function complete(area, offered) {
  let found = [], chosen = 0, all = [];
  const typed = () => /[\w]*$/.exec(area.value.slice(0, area.selectionStart))[0];
  const close = () => { offered.hidden = true; area.removeAttribute("aria-activedescendant"); };
  const draw = () => {
    offered.hidden = !found.length;
    offered.replaceChildren(...found.map((word, at) => make("li", { id: `word${at}`, role: "option", "aria-selected": String(at === chosen), onmousedown: event => { event.preventDefault(); accept(at); } }, word)));
    if (found.length) {
      area.setAttribute("aria-activedescendant", `word${chosen}`);
      offered.children[chosen].scrollIntoView({ block: "nearest" });
    }
  };
  const accept = at => {
    const word = typed();
    area.setRangeText(found[at], area.selectionStart - word.length, area.selectionStart, "end");
    close();
  };
  area.addEventListener("input", () => {
    const word = typed().toLowerCase();
    found = word ? all.filter(one => one.toLowerCase().startsWith(word) && one.toLowerCase() !== word).slice(0, 12) : [];
    chosen = 0;
    draw();
  });
  area.addEventListener("blur", close);
  area.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return area.form.requestSubmit();
    if (offered.hidden) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { chosen = (chosen + step + found.length) % found.length; draw(); }
    else if (event.key === "Enter" || event.key === "Tab") accept(chosen);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  return fresh => { all = fresh; };
}

async function showSql(main) {
  const area = make("textarea", { id: "sql", spellcheck: "false", "aria-label": "Query in SQL", "aria-controls": "words", placeholder: "SELECT host, src, count(*) FROM packets GROUP BY ALL" });
  area.value = get("sql");
  const offered = make("ul", { id: "words", role: "listbox", hidden: true });
  const examples = make("select", { "aria-label": "Examples", onchange: event => { if (event.target.value) go({ ...FIRST, sql: EXAMPLES[event.target.value], sort: "", order: "" }); } },
    make("option", { value: "" }, "Examples"), ...Object.keys(EXAMPLES).map(name => make("option", {}, name)));
  main.append(make("form", { onsubmit: event => { event.preventDefault(); go({ ...FIRST, sql: area.value, sort: "", order: "" }); } },
    make("div", { class: "editor" }, area, offered), make("button", {}, "Run"), make("span", { class: "keys" }, "Ctrl+Enter runs; the tables packets, flows and sightings have the packets of the selection above"), examples));
  const offer = complete(area, offered);
  const learned = words().then(offer, () => {});
  if (!get("sql").trim()) { area.focus(); await learned; return ""; }
  if (get("sort")) return showSorted(main);
  const answer = await rows(get("sql"), 1000);
  remark(answer.remarks);
  if (isLocated(answer.columns)) main.append(make("div", { class: "bar" }, make("a", { class: "button", href: `packets.pcapng?${selected({ sql: get("sql") })}`, download: "packets.pcapng" }, "Download these packets as pcapng")));
  main.append(table(answer.columns, answer.rows, { sorted: {} }));
  return answer.more ? `the first ${plural(answer.rows.length, "row")}: sort them by a column to see all` : plural(answer.rows.length, "row");
}

const LOCATION = ["time_ns", "chunk", "frame", "offset"];
const isLocated = columns => LOCATION.every(name => columns.includes(name));

/** Shows the rows of a query in the order of a column, page by page. */
async function showSorted(main) {
  const sql = `(${get("sql").trim().replace(/;$/, "")}\n)`;
  const all = await columnsOf(sql);
  // Rows that differ in no column cannot be told apart, so that they are one row.
  const shown = await (isLocated(all) ? showPages(main, `SELECT * FROM ${sql}`, orderOf("", LOCATION)) : showPages(main, `SELECT DISTINCT * FROM ${sql}`, orderOf("", all)));
  return `${plural(shown, "row")}${isLocated(all) ? "" : "; equal rows are shown once"}`;
}

/* Incidents. */

async function showIncidents(main) {
  const name = get("incident");
  if (!name) {
    const { incidents } = await list();
    const all = Object.entries(incidents).sort(([one], [other]) => other.localeCompare(one));
    main.append(make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "incident"), make("th", {}, "hosts"))),
      make("tbody", {}, ...all.map(([id, hosts]) => make("tr", {}, make("td", {}, link(id, { incident: id })), make("td", {}, hosts.join(", "))))))));
    return all.length ? plural(all.length, "incident") : "no incidents: trawl fleet trigger stores one";
  }
  const incident = await ask("api/incident", new URLSearchParams({ incident: name }));
  const time = ns => date(ms(ns));
  main.append(make("h2", {}, `${incident.incident}${incident.why ? `: ${incident.why}` : ""}`),
    make("p", {}, `${time(incident.from_ns)} to ${time(incident.to_ns)} UTC`),
    make("div", { class: "bar" }, link("packets", { view: "packets" }), link("conversations", { view: "conversations" }), link("SQL", { view: "sql" }), link("all incidents", { incident: "" }),
      make("a", { class: "button", href: `packets.pcapng?${new URLSearchParams({ incident: name })}`, download: "packets.pcapng" }, "Download as pcapng")));
  const missing = host => [!host.stored && "nothing stored", host.lost && `${count.format(host.lost)} lost`, host.since_ns && `no packets before ${time(host.since_ns)}`, host.until_ns && `no packets after ${time(host.until_ns)}`].filter(Boolean).join(", ");
  main.append(table(["host", "packets", "drops", "resets", "resent", "lost", "missing"], incident.hosts.map(host =>
    [host.host, host.seen.packets, host.seen.drops, host.seen.resets, host.seen.retransmissions, host.lost, missing(host)].map(String))));
  main.append(make("h2", {}, "Course"), table(["time (UTC)", "clock error", "host", "event"], incident.timeline.map(moment =>
    [new Date(ms(moment.time_ns)).toISOString().slice(11, 23), moment.host === null ? "" : moment.error_bound_ns === null ? "unknown" : `±${(moment.error_bound_ns / 1e6).toFixed(3)} ms`, moment.host ?? "", moment.event])));
  return plural(incident.hosts.length, "host");
}

/* Drops. */

/** Number of rows of each table of drops. */
const KINDS = 500;

async function showDrops(main) {
  const title = (text, rows) => make("h2", {}, text + (rows.length < KINDS ? "" : `: the largest ${KINDS}`));
  const reasons = await rows("SELECT reason, host, interface, count(*) AS packets, min(time) AS first, max(time) AS last FROM packets WHERE reason IS NOT NULL GROUP BY reason, host, interface ORDER BY packets DESC", KINDS);
  remark(reasons.remarks);
  const at = name => reasons.columns.indexOf(name);
  const query = row => ({ view: "sql", sql: `SELECT * FROM packets\nWHERE reason = '${row[at("reason")].replaceAll("'", "''")}' AND host = '${row[at("host")].replaceAll("'", "''")}'\nORDER BY time_ns LIMIT 1000` });
  main.append(title("Packets that the kernel dropped", reasons.rows), table(reasons.columns, reasons.rows, { first: row => link("rows", query(row)) }));
  const verdicts = await rows("SELECT verdict, host, interface, hook, count(*) AS packets FROM packets WHERE verdict IS NOT NULL GROUP BY verdict, host, interface, hook ORDER BY packets DESC", KINDS);
  main.append(title("Verdicts of XDP and tc programs", verdicts.rows), table(verdicts.columns, verdicts.rows));
  const lost = new Map();
  for (const run of (await list()).captures) {
    for (const [reason, packets] of Object.entries(run.lost)) {
      const name = JSON.stringify([run.host, reason.replaceAll("_", " ")]);
      if (packets) lost.set(name, (lost.get(name) ?? 0) + packets);
    }
  }
  const losses = [...lost].map(([name, packets]) => [...JSON.parse(name), String(packets)]).sort((one, other) => other[2] - one[2]);
  main.append(title("Packets lost before they were recorded, at any time", losses), table(["host", "reason", "packets"], losses.slice(0, KINDS)));
  return `${plural(reasons.rows.length, "kind")} of drops${reasons.more ? ", and there are more" : ""}`;
}

/* The page as a whole. */

const SHOW = { hosts: showHosts, conversations: showConversations, packets: showPackets, sql: showSql, incidents: showIncidents, drops: showDrops };

function show() {
  asking.abort();
  asking = new AbortController();
  state = new URLSearchParams(location.hash.slice(1));
  const own = view();
  if (own !== block.view) {
    block.stop.abort();
    block.stop = new AbortController();
  }
  document.title = `${VIEWS[own]} – trawl store`;
  for (const tab of find("nav").children) {
    tab.href = address({ ...FIRST, view: tab.dataset.view, sort: "", order: "" });
    if (tab.dataset.view === own) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  const form = find("#selection");
  form.hidden = own === "hosts" || own === "incidents";
  for (const name of SELECTION) form.elements[name].value = get(name);
  for (const name of ["from", "to", "host"]) form.elements[name].disabled = Boolean(get("incident"));
  find("#reset").href = `#${new URLSearchParams({ view: own })}`;
  remark([]);
  const main = make("main", { id: "view", tabindex: -1 });
  const focused = document.activeElement.id;
  find("#view").replaceWith(main);
  answering(async () => {
    const text = await SHOW[own](main);
    // The new button has the keyboard's focus if the old one had it; the table, if the button leads nowhere.
    if (document.activeElement === document.body && focused) {
      const again = document.getElementById(focused);
      (again?.disabled ? find("#view .scroll") : again)?.focus();
    }
    return text;
  });
}

function logIn() {
  find("#login").hidden = false;
  find("#selection").hidden = true;
  find("#token").focus();
}

async function start() {
  try {
    session = await ask("api/session");
  } catch (error) {
    return say(error.message, true);
  }
  find("#login").hidden = true;
  find("#store").textContent = session.store;
  find("#user").hidden = !session.user;
  find("#user span").textContent = session.user;
  show();
}

find("nav").append(...Object.entries(VIEWS).map(([name, text]) => make("a", { "data-view": name }, text)));
find("#login").addEventListener("submit", async event => {
  event.preventDefault();
  const response = await fetch("api/login", { method: "POST", body: find("#token").value });
  find("#login [role=alert]").textContent = response.ok ? "" : await response.text();
  find("#token").value = "";
  if (response.ok) start();
});
find("#user button").addEventListener("click", async () => {
  await fetch("api/logout", { method: "POST" });
  location.reload();
});
find("#selection").addEventListener("submit", event => {
  event.preventDefault();
  const form = event.target.elements;
  go({ ...Object.fromEntries(SELECTION.map(name => [name, form[name].value.trim()])), ...FIRST });
});
window.addEventListener("hashchange", show);
start();
