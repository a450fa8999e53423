// The controls: time, the chosen mech, and lists.
"use strict";

const el = (id) => document.getElementById(id);
const replay = readReplay(JSON.parse(el("replay").textContent));
const board = new Board(el("map"), replay);
const rows = new Map();
let tick = replay.first, runs = false, chosen = replay.mechs[0].id, before = null, listed = [];

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

function begin() {
  el("name0").textContent = replay.players[0];
  el("name1").textContent = replay.players[1];
  el("result").textContent = (replay.title ? replay.title + ", " : "") + (replay.winner ? replay.winner + " wins" : "nobody has won");
  Object.assign(el("scrub"), { min: replay.first, max: replay.last, value: tick });
  const column = (team) => replay.mechs.filter((mech) => mech.team === team);
  const [blue, red] = [column("blue"), column("red")];
  for (let k = 0; k < Math.max(blue.length, red.length); k += 1) for (const mech of [blue[k], red[k]]) el("mechs").append(mechRow(mech));
  el("play").onclick = () => run(!runs);
  el("back").onclick = () => step(-1);
  el("next").onclick = () => step(1);
  el("scrub").oninput = () => seek(Number(el("scrub").value));
  el("filter").onchange = listEvents;
  el("map").onclick = (event) => {
    const found = board.pick(event.clientX, event.clientY, stateAt(replay, tick));
    if (found) choose(found);
  };
  el("marks").onclick = (event) => seekOn(el("marks"), event);
  document.addEventListener("keydown", pressed);
  window.addEventListener("resize", show);
  choose(chosen);
  drawMarks();
}

function pressed(event) {
  if (["SELECT", "BUTTON"].includes(event.target.tagName) && event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  if (event.target.tagName === "SELECT") return;
  if (event.key === " ") run(!runs);
  else if (event.key === "ArrowLeft" && event.target !== el("scrub")) step(-1);
  else if (event.key === "ArrowRight" && event.target !== el("scrub")) step(1);
  else return;
  event.preventDefault();
}

function mechRow(mech) {
  if (!mech) return make("span");
  const row = make("button", "mech " + mech.team), head = make("div", "row"), state = make("em");
  head.append(make("b", "", mech.label), state);
  const health = make("u"), heat = make("u"), one = make("i"), two = make("i", "heat");
  one.append(health);
  two.append(heat);
  row.append(head, one, two);
  row.onclick = () => choose(mech.id);
  rows.set(mech.id, { row, state, health, heat });
  return row;
}

// -- time -----------------------------------------------------------------------------------------------------

function run(on) {
  if (on && tick >= replay.last) tick = replay.first;
  runs = on;
  before = null;
  el("play").textContent = runs ? "Pause" : "Play";
  if (runs) requestAnimationFrame(advance);
  show();
}

function advance(now) {
  if (!runs) return;
  if (before !== null) tick = Math.min(tick + ((now - before) / 1000 / TICK) * Number(el("speed").value), replay.last);
  before = now;
  if (tick >= replay.last) run(false);
  else {
    show();
    requestAnimationFrame(advance);
  }
}

function seek(to) {
  tick = Math.min(Math.max(to, replay.first), replay.last);
  before = null;
  show();
}

function step(sign) {
  run(false);
  const t = frameAt(replay, tick) + (sign < 0 && replay.ticks.includes(tick) ? -1 : sign > 0 ? 1 : 0);
  seek(replay.ticks[Math.min(Math.max(t, 0), replay.ticks.length - 1)]);
}

function seekOn(canvas, event) {
  const frame = canvas.getBoundingClientRect();
  seek(replay.first + ((event.clientX - frame.left) / frame.width) * (replay.last - replay.first));
}

// -- showing --------------------------------------------------------------------------------------------------

function show() {
  const state = stateAt(replay, tick), held = holder(state);
  board.draw(state, chosen);
  el("clock").textContent = clockText(tick);
  const said = { both: "CONTESTED", nobody: "ZONE EMPTY", blue: "BLUE HOLDS", red: "RED HOLDS" };
  el("holder").textContent = said[held];
  el("holder").style.color = held === "nobody" ? "" : COLOURS[held];
  state.objective.score.forEach((score, side) => {
    el("score" + side).textContent = score.toFixed(1) + " / " + state.objective.to_win + " s";
    el("bar" + side).style.width = Math.min(100 * score / state.objective.to_win, 100) + "%";
  });
  el("scrub").value = tick;
  for (const mech of state.mechs) showRow(mech);
  showDetails(state);
  showEvents();
}

function word(mech) {
  if (!mech.alive) return "destroyed";
  if (mech.shutdown) return "shut down";
  if (mech.fallen) return "down";
  return Math.round(Math.max(mech.hp, 0)) + " hp";
}

function showRow(mech) {
  const { row, state, health, heat } = rows.get(mech.id);
  row.classList.toggle("dead", !mech.alive);
  row.classList.toggle("chosen", mech.id === chosen);
  state.textContent = word(mech);
  const share = mech.alive ? Math.max(mech.hp / mech.hp_max, 0) : 0;
  health.style.width = 100 * share + "%";
  health.style.background = share > 0.5 ? "" : share > 0.25 ? "var(--fair)" : "var(--bad)";
  heat.style.width = mech.alive ? Math.min(100 * mech.heat / mech.heat_cap, 100) + "%" : "0";
}

// -- the chosen mech ------------------------------------------------------------------------------------------

let charts = [];

function choose(id) {
  chosen = id;
  const mech = replay.byId[id], box = el("details");
  box.replaceChildren();
  const head = make("div", "row"), title = make("h2", mech.team + "-text", mech.team[0].toUpperCase() + mech.team.slice(1) + " " + mech.label), badges = make("div", "badges");
  head.append(title, badges);
  const hint = make("p", "hint");
  box.append(head, hint);
  charts = [["health, hp", "hp", "#6ee678", mech.hpMax], ["heat of " + mech.heatCap, "heat", "#ffa83a", mech.heatCap * 1.25],
    ["stability, %", "stability", "#96aaff", 100]].map(([label, name, colour, most]) => {
    const line = chartLine(box, label);
    return { ...line, name, colour, most, values: series(replay, id, name), limit: name === "heat" ? mech.heatCap : null };
  });
  const spans = { ...chartLine(box, "target", "thin"), spans: targetsOf(replay, id) };
  charts.push(spans);
  box.hint = hint;
  box.badges = badges;
  if (el("filter").value === "mine") listEvents(); else if (!listed.length) listEvents();
  show();
}

function chartLine(box, label, kind) {
  const line = make("div", "chart"), canvas = make("canvas", kind), number = make("b");
  canvas.onclick = (event) => seekOn(canvas, event);
  line.append(make("span", "", label), canvas, number);
  box.append(line);
  return { canvas, number };
}

function showDetails(state) {
  const now = state.mechs.find((mech) => mech.id === chosen), box = el("details");
  const target = now.alive && now.target ? replay.byId[now.target] : null;
  const aim = !now.alive ? "destroyed" : target ? "aims at " + target.team + " " + target.label : "aims at nobody";
  box.hint.textContent = aim + "; " + now.kills + " kills, " + Math.round(now.damage) + " damage";
  const marks = !now.alive ? [] : [["SHUT DOWN", now.shutdown, "warn"], ["DOWN", now.fallen, "warn"], ["legged", now.legged, "warn"],
    ["painted", now.painted_time > 0, "paint"], ["suppressed", now.suppressed_time > 0, ""], ["ECM", now.ecm_on, ""],
    ["ECCM", now.eccm_on, ""], ["jammed", now.jammed > 0.35, ""], ["in zone", now.in_zone, ""]];
  box.badges.replaceChildren(...marks.filter((mark) => mark[1]).map((mark) => make("span", mark[2], mark[0])));
  for (const chart of charts) chart.spans ? drawSpans(chart, target) : drawChart(chart, now);
}

function sized(canvas) {
  const ratio = window.devicePixelRatio || 1, width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const c = canvas.getContext("2d");
  c.clearRect(0, 0, width, height);
  const span = Math.max(replay.last - replay.first, 1);
  return { c, width, height, at: (when) => ((when - replay.first) / span) * width, ratio };
}

function cursor({ c, height, at, ratio }) {
  c.fillStyle = "#ffffff";
  c.fillRect(at(tick) - ratio / 2, 0, ratio, height);
}

function drawChart(chart, now) {
  const sheet = sized(chart.canvas), { c, height, at, ratio } = sheet, level = (value) => height - 2 - (height - 4) * Math.min(Math.max(value / chart.most, 0), 1);
  if (chart.limit) {
    c.fillStyle = "rgba(255, 90, 80, .7)";
    c.fillRect(0, level(chart.limit), sheet.width, ratio);
  }
  c.beginPath();
  chart.values.forEach((value, t) => c.lineTo(at(replay.ticks[t]), level(value)));
  c.strokeStyle = chart.colour;
  c.lineWidth = 1.6 * ratio;
  c.stroke();
  c.lineTo(at(replay.last), height);
  c.lineTo(0, height);
  c.globalAlpha = 0.16;
  c.fillStyle = chart.colour;
  c.fill();
  c.globalAlpha = 1;
  cursor(sheet);
  chart.number.textContent = Math.round(Math.max(now.alive ? now[chart.name] : 0, 0));
}

function drawSpans(chart, target) {
  const sheet = sized(chart.canvas), { c, height, at, ratio } = sheet;
  c.font = `${10 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
  c.textBaseline = "middle";
  chart.spans.forEach(([start, end, id]) => {
    if (!id) return;
    const mech = replay.byId[id], width = at(end) - at(start), tone = 34 + 9 * Number(id.split("_")[1] % 5);
    c.fillStyle = mech.team === "blue" ? `hsl(212, 70%, ${tone}%)` : `hsl(3, 62%, ${tone}%)`;
    c.fillRect(at(start), 0, Math.max(width - ratio, ratio), height);
    c.fillStyle = "#ffffff";
    if (width > 22 * ratio) c.fillText(mech.short, at(start) + 4 * ratio, height / 2 + ratio);
  });
  cursor(sheet);
  chart.number.textContent = target ? target.short : "-";
}

// Destroyed mechs along the time bar.
function drawMarks() {
  const { c, height, at, ratio } = sized(el("marks"));
  for (const event of replay.events) {
    if (event.type !== "kill") continue;
    c.fillStyle = COLOURS[event.target.split("_")[0]];
    c.beginPath();
    c.arc(Math.min(Math.max(at(event.tick), 5 * ratio), el("marks").width - 5 * ratio), height / 2, 4 * ratio, 0, 7);
    c.fill();
  }
}

// -- events ---------------------------------------------------------------------------------------------------

function listEvents() {
  const list = el("events");
  listed = eventsFor(replay, el("filter").value, chosen).map((event) => {
    const line = make("li", event.type), text = make("span");
    for (const part of sentence(event)) {
      const mech = part.id && replay.byId[part.id];
      text.append(mech ? make("span", mech.team + "-text", mech.label) : String(part));
    }
    line.append(make("time", "", clockText(event.tick)), text);
    line.onclick = () => seek(event.tick - 1);
    return { event, line };
  });
  list.replaceChildren(...listed.map((entry) => entry.line));
  if (!listed.length) list.append(make("li", "", "none"));
  showEvents();
}

function showEvents() {
  let latest = null;
  for (const { event, line } of listed) {
    const past = event.tick <= tick + 1;
    line.classList.toggle("past", past);
    line.classList.toggle("ahead", !past);
    line.classList.remove("now");
    if (past) latest = line;
  }
  if (!latest) return;
  latest.classList.add("now");
  const list = el("events");
  if (runs) list.scrollTop = latest.offsetTop - list.clientHeight / 2;
}

window.addEventListener("resize", drawMarks);
begin();
