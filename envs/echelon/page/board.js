// Draws the map at a time on a canvas: voxels, y up.
"use strict";

const COLOURS = { blue: "#4a9eff", red: "#ff5c54", both: "#d68cff", nobody: "#ebf0f8" };
const LIGHT = { blue: "#bedeff", red: "#ffc8c4" };
const WIDTHS = { scout: 1.2, light: 1.5, medium: 2.5, heavy: 3.5 };
const SHAPES = {
  heavy: [[0.5, -0.28], [0.5, 0.28], [0.28, 0.5], [-0.42, 0.5], [-0.5, 0.4], [-0.5, -0.4], [-0.42, -0.5], [0.28, -0.5]],
  medium: [[0.55, 0], [0.12, 0.5], [-0.48, 0.42], [-0.48, -0.42], [0.12, -0.5]],
  light: [[0.62, 0], [-0.15, 0.52], [-0.5, 0.3], [-0.5, -0.3], [-0.15, -0.52]],
  scout: [[0.7, 0], [-0.5, 0.5], [-0.5, -0.5]],
};
const TRAILS = { missile: 9, gauss: 2.5, autocannon: 1.5, smoke: 0.5 };
const LASTS = { laser_hit: 4, flamer_hit: 3, paint: 6, ams_intercept: 6, explosion: 9, projectile_hit: 5, kill: 18 };

class Board {
  constructor(canvas, replay) {
    this.canvas = canvas;
    this.replay = replay;
    this.side = replay.world.size[0];
    this.shown = replay.events.filter((event) => LASTS[event.type]);
    this.ground = null;
  }

  // Fits the canvas to its place on the page; true when it has changed.
  fit() {
    const size = Math.max(Math.round(this.canvas.clientWidth * (window.devicePixelRatio || 1)), 200);
    if (this.canvas.width === size && this.ground) return false;
    this.canvas.width = this.canvas.height = size;
    this.scale = size / this.side;
    this.ground = this.drawnGround(size);
    return true;
  }

  drawnGround(size) {
    const sheet = document.createElement("canvas");
    sheet.width = sheet.height = size;
    const c = sheet.getContext("2d"), s = this.scale, { heights, terrain } = this.replay.world;
    c.fillStyle = "#222830";
    c.fillRect(0, 0, size, size);
    const box = (x, y) => [x * s, size - (y + 1) * s, s + 0.6, s + 0.6];
    const kinds = { water: "#1a3e68", lava: "#963a16", low_wall: "#6c624a" };
    for (let y = 0; y < this.side; y += 1) {
      for (let x = 0; x < this.side; x += 1) {
        const kind = TERRAIN_NAMES[terrain[y][x]], tall = heights[y][x];
        if (tall) {
          const grey = Math.round(62 + 88 * Math.min(tall / 8, 1));
          c.fillStyle = `rgb(${grey}, ${grey + 5}, ${grey + 13})`;
        } else if (kinds[kind]) c.fillStyle = kinds[kind];
        else c.fillStyle = (x >> 3) + (y >> 3) & 1 ? "#222830" : "#262c35";
        c.fillRect(...box(x, y));
        if (!tall && kind === "foliage") {
          c.fillStyle = "#3a6f44";
          c.beginPath();
          c.arc((x + 0.5) * s, size - (y + 0.5) * s, 0.42 * s, 0, 7);
          c.fill();
        }
      }
    }
    this.edges(c, size, heights);
    return sheet;
  }

  // Bright and dark sides of what is higher than its neighbours.
  edges(c, size, heights) {
    const s = this.scale, at = (x, y) => (heights[y] === undefined || heights[y][x] === undefined ? 0 : heights[y][x]);
    c.lineWidth = Math.max(1, 0.1 * s);
    for (let y = 0; y < this.side; y += 1) {
      for (let x = 0; x < this.side; x += 1) {
        const tall = at(x, y), left = x * s, top = size - (y + 1) * s;
        if (!tall) continue;
        for (const [dx, dy, one, two, light] of [[-1, 0, [0, 0], [0, 1], 1], [0, 1, [0, 0], [1, 0], 1],
          [1, 0, [1, 0], [1, 1], 0], [0, -1, [0, 1], [1, 1], 0]]) {
          if (at(x + dx, y + dy) >= tall) continue;
          c.strokeStyle = light ? "rgba(255,255,255,.35)" : "rgba(0,0,0,.5)";
          c.beginPath();
          c.moveTo(left + one[0] * s, top + one[1] * s);
          c.lineTo(left + two[0] * s, top + two[1] * s);
          c.stroke();
        }
      }
    }
  }

  x(value) { return value * this.scale; }
  y(value) { return this.canvas.height - value * this.scale; }

  draw(state, chosen) {
    this.fit();
    const c = this.c = this.canvas.getContext("2d");
    c.globalAlpha = 1;
    c.drawImage(this.ground, 0, 0);
    this.zone(state);
    for (const mech of state.mechs) if (!mech.alive) this.wreck(mech);
    const living = state.mechs.filter((mech) => mech.alive);
    for (const mech of living) this.aim(mech, state, chosen);
    for (const mech of living) this.mech(mech, mech.id === chosen);
    for (const mech of living) this.bars(mech);
    for (const flight of this.replay.flights) this.flight(flight, state.tick);
    for (const event of this.shown) {
      const age = (state.tick - event.tick + 1) / LASTS[event.type];
      if (age > 0 && age < 1) this.event(event, age, state);
    }
    for (const cloud of state.smoke) this.disc(cloud.pos, cloud.radius, "#b0b6be", 0.32 * Math.min(1, Math.max((cloud.time_left - state.since) / 3, 0)));
    c.globalAlpha = 1;
  }

  disc(place, radius, colour, opacity = 1) {
    this.c.globalAlpha = opacity;
    this.c.fillStyle = colour;
    this.c.beginPath();
    this.c.arc(this.x(place[0]), this.y(place[1]), radius * this.scale, 0, 7);
    this.c.fill();
  }

  ring(place, radius, width, colour, opacity = 1) {
    this.c.globalAlpha = opacity;
    this.c.strokeStyle = colour;
    this.c.lineWidth = Math.max(width * this.scale, 1);
    this.c.beginPath();
    this.c.arc(this.x(place[0]), this.y(place[1]), radius * this.scale, 0, 7);
    this.c.stroke();
  }

  line(one, two, width, colour, opacity = 1) {
    this.c.globalAlpha = opacity;
    this.c.strokeStyle = colour;
    this.c.lineWidth = Math.max(width * this.scale, 1);
    this.c.beginPath();
    this.c.moveTo(this.x(one[0]), this.y(one[1]));
    this.c.lineTo(this.x(two[0]), this.y(two[1]));
    this.c.stroke();
  }

  zone(state) {
    const { center, radius } = state.objective, colour = COLOURS[holder(state)];
    this.disc(center, radius, colour, 0.09);
    this.ring(center, radius, 0.28, colour, 0.9);
  }

  wreck(mech) {
    const [x, y] = mech.pos, size = 0.3 * WIDTHS[mech.class] + 0.4;
    for (const up of [1, -1]) this.line([x - size, y - up * size], [x + size, y + up * size], 0.3, COLOURS[mech.team], 0.4);
  }

  aim(mech, state, chosen) {
    const target = state.mechs.find((other) => other.id === mech.target);
    if (!target || !target.alive) return;
    this.c.setLineDash([this.scale * 0.25, this.scale * 0.9]);
    this.line(mech.pos, target.pos, mech.id === chosen ? 0.22 : 0.12, COLOURS[mech.team], mech.id === chosen ? 0.95 : 0.5);
    this.c.setLineDash([]);
  }

  size(mech) { return WIDTHS[mech.class] + 0.6; }

  mech(mech, chosen) {
    const c = this.c, size = this.size(mech), cos = Math.cos(mech.yaw), sin = Math.sin(mech.yaw), [x, y] = mech.pos;
    if (chosen) this.ring(mech.pos, 0.5 * size + 0.9, 0.25, "#ffffff", 0.95);
    if (mech.ecm_on || mech.eccm_on) this.ring(mech.pos, 0.5 * size + 1.2, 0.1, mech.ecm_on ? "#d68cff" : "#78ffc8", 0.8);
    c.globalAlpha = mech.fallen ? 0.55 : 1;
    c.beginPath();
    for (const [along, across] of SHAPES[mech.class]) {
      c.lineTo(this.x(x + size * (cos * along - sin * across)), this.y(y + size * (sin * along + cos * across)));
    }
    c.closePath();
    c.fillStyle = mech.team === "blue" ? "#2e62a0" : "#a03a35";
    c.fill();
    c.strokeStyle = LIGHT[mech.team];
    c.lineWidth = Math.max(0.14 * this.scale, 1);
    c.stroke();
    if (!mech.fallen) this.line(mech.pos, [x + 0.72 * size * cos, y + 0.72 * size * sin], 0.22, "#ffffff", 0.95);
    if (mech.shutdown) this.ring(mech.pos, 0.62 * size, 0.22, "#ffa83a");
    if (mech.painted_time > 0) this.corners(mech.pos, 0.7 * size + 0.3);
    c.globalAlpha = 1;
    c.fillStyle = LIGHT[mech.team];
    c.font = `600 ${Math.max(10, 1.1 * this.scale)}px system-ui, "DejaVu Sans", sans-serif`;
    c.textAlign = "center";
    c.fillText(this.replay.byId[mech.id].short, this.x(x), this.y(y - 0.5 * size - 1.1));
  }

  corners([x, y], size) {
    for (const [right, up] of [[1, 1], [1, -1], [-1, 1], [-1, -1]]) {
      const corner = [x + right * size, y + up * size];
      this.line(corner, [corner[0] - right * 0.45 * size, corner[1]], 0.14, "#ffe25a");
      this.line(corner, [corner[0], corner[1] - up * 0.45 * size], 0.14, "#ffe25a");
    }
  }

  bars(mech) {
    const [x, y] = mech.pos, top = y + 0.5 * this.size(mech) + 1.0;
    const health = Math.max(mech.hp / mech.hp_max, 0), heat = Math.min(mech.heat / mech.heat_cap, 1);
    const tone = health > 0.5 ? "#6ee678" : health > 0.25 ? "#ffd250" : "#ff5a50";
    [[health, tone], [heat, "#ffa83a"]].forEach(([share, colour], row) => {
      const level = top - 0.42 * row;
      this.line([x - 1.25, level], [x + 1.25, level], 0.36, "#000000", 0.65);
      if (share > 0) this.line([x - 1.25, level], [x - 1.25 + 2.5 * share, level], 0.34, colour);
    });
  }

  flight(flight, tick) {
    const now = flightAt(flight, tick, TRAILS[flight.weapon]);
    if (!now) return;
    const team = flight.owner.split("_")[0];
    if (flight.weapon === "missile") {
      this.line(now.tail, now.head, 0.3, "#b0b6be", 0.5);
      this.disc(now.head, 0.42, LIGHT[team]);
    } else if (flight.weapon === "smoke") this.disc(now.head, 0.34, "#b0b6be");
    else this.line(now.tail, now.head, flight.weapon === "gauss" ? 0.36 : 0.24, flight.weapon === "gauss" ? "#ffffff" : "#ffe296", 0.95);
  }

  event(event, age, state) {
    const left = 1 - age, where = (id) => state.mechs.find((mech) => mech.id === id).pos;
    switch (event.type) {
      case "laser_hit":
        this.line(event.start, event.pos, 0.45, COLOURS[event.shooter.split("_")[0]], 0.55 * left);
        this.line(event.start, event.pos, 0.16, "#ffffff", 0.95 * left);
        break;
      case "flamer_hit": this.line(event.start, event.pos, 0.8, "#ff8c28", 0.6 * left); break;
      case "paint": this.line(where(event.shooter), where(event.target), 0.16, "#ffe25a", 0.8 * left); break;
      case "ams_intercept": this.line(where(event.mech), event.pos, 0.16, "#82f0ff", 0.9 * left); break;
      case "explosion":
        this.disc(event.pos, 0.5 * event.radius * left, "#ffd68c", 0.7 * left);
        this.ring(event.pos, event.radius * (1 - left * left), 0.25, "#ffb05a", left);
        break;
      case "projectile_hit": this.ring(event.pos, 0.2 + 0.7 * age, 0.2, "#fff0be", left); break;
      default:
        this.disc(event.pos, 2 * left, "#ffd68c", 0.6 * left);
        this.ring(event.pos, 4.2 * (1 - left * left), 0.35, COLOURS[event.target.split("_")[0]], left);
    }
  }

  // The living mech nearest to a place on the page, within a finger's width; else null.
  pick(clientX, clientY, state) {
    const frame = this.canvas.getBoundingClientRect(), unit = this.side / frame.width;
    const x = (clientX - frame.left) * unit, y = this.side - (clientY - frame.top) * unit;
    let best = null, least = Math.max(24 * unit, 2.5);
    for (const mech of state.mechs) {
      const away = Math.hypot(mech.pos[0] - x, mech.pos[1] - y) + (mech.alive ? 0 : 1);
      if (away < least) [best, least] = [mech.id, away];
    }
    return best;
  }
}
