// A replay as the page needs it: who takes part, and everything at any time. Nothing here touches the page.
"use strict";

const TICK = 0.05;
const MAIN_EVENTS = ["kill", "assist", "knock_down", "legged", "shutdown", "ams_intercept", "smoke_cloud"];
const TERRAIN_NAMES = ["plain", "foliage", "low_wall", "water", "lava"];

function readReplay(document) {
  const frames = document.frames;
  const mechs = Object.entries(frames[0].mechs).map(([id, mech]) => ({
    id, team: mech.team, kind: mech.class, hpMax: mech.hp_max, heatCap: mech.heat_cap,
    label: mech.class[0].toUpperCase() + mech.class.slice(1) + " " + id.split("_")[1],
    short: mech.class[0].toUpperCase() + id.split("_")[1], deadFrom: Infinity,
  }));
  const byId = Object.fromEntries(mechs.map((mech) => [mech.id, mech]));
  const events = frames.flatMap((frame) => frame.events);
  for (const event of events) if (event.type === "kill") byId[event.target].deadFrom = event.tick;
  return {
    mechs, byId, events, flights: flightsOf(frames), frames, world: document.world,
    ticks: frames.map((frame) => frame.tick), first: frames[0].tick, last: frames[frames.length - 1].tick,
    players: document.players, title: document.title, winner: document.winner,
  };
}

function flightsOf(frames) {
  const found = new Map();
  for (const frame of frames) {
    for (const part of frame.projectiles) {
      const flight = found.get(part.id) || { weapon: part.weapon, owner: part.owner, target: part.target, path: [] };
      flight.path.push(...part.path);
      found.set(part.id, flight);
    }
  }
  return [...found.values()];
}

// The latest frame at or before a time in ticks.
function frameAt(replay, tick) {
  let low = 0, high = replay.ticks.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (replay.ticks[middle] <= tick) low = middle; else high = middle - 1;
  }
  return low;
}

const mix = (one, two, share) => one + share * (two - one);

function mixAngle(one, two, share) {
  const turn = ((two - one + Math.PI) % (2 * Math.PI) + 2 * Math.PI) % (2 * Math.PI) - Math.PI;
  return one + share * turn;
}

// All mechs at a time; between two frames what moves is in between.
function stateAt(replay, tick) {
  const t = frameAt(replay, tick), frame = replay.frames[t], next = replay.frames[t + 1];
  const share = next ? Math.min(Math.max((tick - frame.tick) / (next.tick - frame.tick), 0), 1) : 0;
  const mechs = replay.mechs.map((mech) => {
    const now = frame.mechs[mech.id];
    const alive = now.alive && tick < mech.deadFrom;
    if (!next || !share) return { ...now, id: mech.id, alive };
    const then = next.mechs[mech.id];
    return {
      ...now, id: mech.id, alive, pos: now.pos.map((value, axis) => mix(value, then.pos[axis], share)),
      yaw: mixAngle(now.yaw, then.yaw, share), heat: mix(now.heat, then.heat, share),
      stability: mix(now.stability, then.stability, share),
    };
  });
  const goal = frame.objective;
  const score = next ? goal.score.map((value, side) => mix(value, next.objective.score[side], share)) : goal.score;
  return { t, tick, mechs, objective: { ...goal, score }, smoke: frame.smoke_clouds, since: (tick - frame.tick) * TICK };
}

// Where something that flies is, and where it was some ticks before; null when it does not fly.
function flightAt(flight, tick, before) {
  const path = flight.path, end = path[path.length - 1][0];
  if (tick < path[0][0] || tick > end) return null;
  const at = (when) => {
    let k = 0;
    while (k + 1 < path.length && path[k + 1][0] <= when) k += 1;
    const one = path[k], two = path[Math.min(k + 1, path.length - 1)];
    const share = two[0] > one[0] ? Math.min(Math.max((when - one[0]) / (two[0] - one[0]), 0), 1) : 0;
    return [1, 2, 3].map((axis) => mix(one[axis], two[axis], share));
  };
  return { head: at(tick), tail: at(Math.max(tick - before, path[0][0])) };
}

// Who holds the zone: "blue", "red", "both" or "nobody".
function holder(state) {
  const inside = new Set(state.mechs.filter((mech) => mech.in_zone && mech.alive).map((mech) => mech.team));
  return inside.size === 2 ? "both" : inside.size === 1 ? [...inside][0] : "nobody";
}

// A series of one number of a mech over all frames.
const series = (replay, id, name) => replay.frames.map((frame) => frame.mechs[id][name]);

// What a mech aimed at: [first tick, last tick, id or null].
function targetsOf(replay, id) {
  const spans = [];
  replay.frames.forEach((frame, t) => {
    const mech = frame.mechs[id], target = mech.alive ? mech.target : null;
    const end = t + 1 < replay.frames.length ? replay.frames[t + 1].tick : frame.tick;
    const last = spans[spans.length - 1];
    if (last && last[2] === target) last[1] = end; else spans.push([frame.tick, end, target]);
  });
  return spans;
}

function eventsFor(replay, filter, id) {
  if (filter === "all") return replay.events;
  if (filter === "mine") return replay.events.filter((event) => [event.shooter, event.target, event.mech].includes(id));
  return replay.events.filter((event) => MAIN_EVENTS.includes(event.type));
}

// An event as parts of a sentence: texts, and ids of mechs as {id}.
function sentence(event) {
  const who = event.shooter ? { id: event.shooter } : "nobody", whom = event.target ? { id: event.target } : "nobody";
  const harm = event.damage ? " (" + Math.round(event.damage) + ")" : "";
  const mech = { id: event.mech };
  switch (event.type) {
    case "laser_hit": return [who, " lasers ", whom, harm];
    case "flamer_hit": return [who, " burns ", whom, harm];
    case "missile_launch": return [who, " launches a missile at ", whom];
    case "kinetic_fire": return event.target ? [who, " fires " + event.weapon + " at ", whom] : [who, " fires " + event.weapon];
    case "projectile_hit": return [who, "'s " + event.weapon + " hits ", whom, harm];
    case "explosion": return [who, "'s " + event.weapon + " bursts"];
    case "smoke_launch": return [who, " fires smoke"];
    case "smoke_cloud": return [who, "'s smoke spreads"];
    case "paint": return [who, " paints ", whom];
    case "assist": return event.target ? [who, " assisted against ", whom] : [who, " assisted"];
    case "ams_intercept": return [mech, " shoots down a missile"];
    case "kill": return event.shooter ? [who, " destroys ", whom] : [whom, " is destroyed"];
    case "knock_down": return [mech, " falls"];
    case "legged": return [mech, " loses its legs"];
    case "shutdown": return [mech, " overheats and shuts down"];
    default: return [event.type];
  }
}

function clockText(tick) {
  const seconds = tick * TICK;
  return Math.floor(seconds / 60) + ":" + (seconds % 60).toFixed(1).padStart(4, "0");
}

if (typeof module !== "undefined") {
  module.exports = { readReplay, frameAt, stateAt, flightAt, holder, series, targetsOf, eventsFor, sentence, clockText };
}
