"use strict";
// Draws the charts, applies the reader's choices to all of them and, where a server is behind the page, keeps it up to date.
(() => {
  const root = document.documentElement;
  const element = (id) => document.getElementById(id);
  const controls = element("controls");
  const choices = { x: "0", logx: false, logy: false, smooth: "0", average: true, theme: "auto" };
  try { Object.assign(choices, JSON.parse(localStorage.getItem("rlstack"))); } catch { /* no storage in this browser */ }
  const hidden = new Set(); // labels of groups
  const near = new WeakSet(); // charts that have been drawn
  let data = JSON.parse(element("data").textContent);

  // -- lines ----------------------------------------------------------------------------------------------------

  /** Returns what a run's clock (1: wall, 2: CPU) shows at these frames, interpolated. */
  function clockAt(run, clock, frames) {
    const [at, ...clocks] = data.times[run];
    const seconds = clocks[clock - 1];
    let k = 0;
    return frames.map((frame) => {
      while (k < at.length - 2 && at[k + 1] < frame) k += 1;
      if (at.length < 2 || frame >= at.at(-1)) return seconds.at(-1);
      const share = (frame - at[k]) / (at[k + 1] - at[k] || 1);
      return seconds[k] + share * (seconds[k + 1] - seconds[k]);
    });
  }

  /** Returns a unit of time in which the longest run has at least two, and its seconds. */
  function unit() {
    const longest = Math.max(0, ...data.times.map((time) => time?.[Number(choices.x)]?.at(-1) ?? 0));
    return [["hours", 3600], ["minutes", 60], ["seconds", 1]].find(([, size]) => longest >= 2 * size) ?? ["seconds", 1];
  }

  /** Returns a line's x coordinates: frames, or the time of its run or, for a mean, on average over its group's. */
  function along(chart, line) {
    const frames = data.xs[line.x], clock = Number(choices.x);
    if (chart.along || !clock || line.dots) return frames;
    const runs = (line.run === null ? data.groups[line.group ?? 0].runs : [line.run]).filter((run) => data.times[run]);
    const times = runs.map((run) => clockAt(run, clock, frames)), [, size] = unit();
    return frames.map((_, k) => times.reduce((sum, time) => sum + time[k], 0) / times.length / size);
  }

  /** Returns an exponential moving average without the bias of its beginning (Kingma and Ba 2015). */
  function smoothed(values, weight) {
    let mean = 0, all = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = weight * mean + (1 - weight) * value;
      all = weight * all + 1 - weight;
      return mean / all;
    });
  }

  function traces(chart, colourOf) {
    const averaged = new Set(chart.lines.filter((line) => line.run === null && line.group !== null).map((line) => line.group));
    const drawn = [];
    for (const line of chart.lines) {
      const inGroup = line.group !== null, single = inGroup && line.run !== null && averaged.has(line.group);
      if (inGroup && hidden.has(data.groups[line.group].label)) continue;
      if (choices.average ? single && data.groups.length > 3 : inGroup && line.run === null) continue;
      const faint = (single && choices.average) || line.colour === null;
      const x = along(chart, line), colour = colourOf(line.colour), weight = chart.step ? 0 : Number(choices.smooth);
      const style = { x, name: line.label, mode: "lines", hoverlabel: { namelength: 40 } };
      const shape = chart.step ? "hv" : "linear";
      const crowded = inGroup && line.run !== null && data.times.length > 3;
      if (line.low && line.high && !chart.step && !faint && !crowded) {
        const edge = { ...style, line: { width: 0, color: colour }, hoverinfo: "skip", showlegend: false };
        drawn.push({ ...edge, y: line.low }, { ...edge, y: line.high, fill: "tonexty", fillcolor: `${colour}29` });
      }
      if (weight && !line.dots) drawn.push({ ...style, y: line.y, opacity: 0.25, line: { color: colour, width: 1 }, hoverinfo: "skip", showlegend: false });
      const few = line.dots || (x.length <= 15 && !faint) || x.length === 1;
      drawn.push({
        ...style,
        y: weight && !line.dots ? smoothed(line.y, weight) : line.y,
        mode: line.dots ? "markers" : few ? "lines+markers" : "lines",
        marker: { size: line.dots ? 8 : 5, color: colour },
        line: { color: colour, width: faint ? 1 : 2, shape },
        opacity: faint ? 0.45 : 1,
        hoverinfo: faint && !line.dots ? "skip" : undefined,
      });
    }
    return drawn;
  }

  // -- charts ---------------------------------------------------------------------------------------------------

  /** Returns an axis: a curve that never changes gets one around its value. */
  function axis(title, log, values, limits) {
    const numbers = values.filter((value) => typeof value === "number" && (!log || value > 0));
    const low = Math.min(...numbers), high = Math.max(...numbers);
    const common = { title: { text: title, font: { size: 12 }, standoff: 8 }, type: log ? "log" : undefined, automargin: true, exponentformat: "SI" };
    if (log && numbers.length) return { ...common, dtick: high / low > 10 ? 1 : undefined, exponentformat: "power", ...(high / low < 1.001 ? { range: [Math.log10(low) - 0.5, Math.log10(low) + 0.5] } : {}) };
    if (limits) return { ...common, range: [limits[0] - 0.02, limits[1] + 0.02] };
    if (!numbers.length) return common;
    if (high - low <= 1e-6 * Math.abs(high)) return { ...common, range: high ? [Math.min(0, 2 * low), Math.max(0, 2 * high)] : [-1, 1] };
    return { ...common, rangemode: low >= 0 ? "nonnegative" : "normal" };
  }

  function draw(plot) {
    const chart = data.charts[plot.dataset.chart];
    const style = getComputedStyle(root), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const ink = colour("ink"), rule = colour("rule");
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: `${choices.x} ${choices.logx} ${choices.logy}`,
      font: { family: style.getPropertyValue("font-family") || getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      margin: { l: 48, r: 12, t: 10, b: 42 }, showlegend: false, hoverlabel: { bgcolor: colour("soft"), bordercolor: rule, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("dim"), activecolor: ink },
      // On a touch screen a finger scrolls the page.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
    const buttons = [["toImage"], chart.kind === "parallel" ? [] : ["zoom2d", "pan2d", "autoScale2d"]];
    const options = { responsive: true, displaylogo: false, modeBarButtons: buttons, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false };
    if (chart.kind === "parallel") {
      const line = { color: chart.scores, colorscale: [[0, colour("grey")], [1, colour("c1")]], showscale: true };
      const lines = { type: "parcoords", dimensions: chart.axes, line, labelfont: { color: ink }, tickfont: { color: ink }, rangefont: { color: colour("dim") } };
      return Plotly.react(plot, [lines], { ...layout, margin: { l: 70, r: 40, t: 50, b: 24 } }, options);
    }
    const lines = traces(chart, (number) => colour(number === null ? "grey" : `c${number}`));
    const grid = { gridcolor: rule, zerolinecolor: rule, linecolor: colour("dim") };
    const title = chart.along || ["frames", `${unit()[0]} of wall-clock time`, `${unit()[0]} of CPU time`][choices.x];
    const [logx, logy] = ["x", "y"].map((name) => chart.log.includes(name) || (choices[`log${name}`] && !chart.names && !(name === "x" && chart.along)));
    layout.xaxis = { ...axis(title, logx, lines.flatMap((line) => line.x)), ...grid, showgrid: false, rangemode: "tozero" };
    layout.yaxis = { ...axis(chart.up, logy, lines.flatMap((line) => line.y), logy ? null : chart.limits), ...grid };
    if (chart.along) delete layout.xaxis.rangemode;
    if (chart.names) Object.assign(layout.yaxis, { tickvals: chart.names.map(([value]) => value), ticktext: chart.names.map(([, name]) => name) });
    layout.hovermode = lines.length > 20 ? "closest" : "x unified";
    layout.showlegend = chart.lines.length > 1 && chart.lines.every((line) => line.group === null);
    layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom", font: { size: 11 } };
    return Plotly.react(plot, lines, layout, options);
  }

  /** Draws the charts as they come into view; those outside wait. */
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !near.has(target)) {
        near.add(target);
        draw(target);
      }
    }
  }, { rootMargin: "300px" });
  const plots = () => [...document.querySelectorAll(".plot")];
  const redraw = () => plots().filter((plot) => near.has(plot)).forEach(draw);

  // -- the reader's choices -------------------------------------------------------------------------------------

  function legend() {
    const averages = data.groups.some((group) => group.runs.length > 1);
    element("average").hidden = !averages;
    controls.hidden = !data.charts.length;
    element("legend").replaceChildren(...(data.groups.length < 2 ? [] : data.groups).map((group) => {
      const button = document.createElement("button");
      const swatch = document.createElement("i");
      swatch.className = `swatch ${group.colour === null ? "grey" : `c${group.colour}`}`;
      button.append(swatch, group.label);
      button.setAttribute("aria-pressed", String(!hidden.has(group.label)));
      button.addEventListener("click", () => {
        if (!hidden.delete(group.label)) hidden.add(group.label);
        button.setAttribute("aria-pressed", String(!hidden.has(group.label)));
        redraw();
      });
      return button;
    }));
  }

  function theme() {
    const dark = choices.theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : choices.theme === "dark";
    root.dataset.theme = dark ? "dark" : "light";
  }

  for (const input of controls.querySelectorAll("[name]")) {
    const property = input.type === "checkbox" ? "checked" : "value";
    input[property] = choices[input.name];
    input.addEventListener("input", () => {
      choices[input.name] = input[property];
      try { localStorage.setItem("rlstack", JSON.stringify(choices)); } catch { /* no storage in this browser */ }
      theme();
      redraw();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); redraw(); });
  addEventListener("beforeprint", () => plots().forEach((plot) => { near.add(plot); draw(plot); }));

  // -- a page that is served ------------------------------------------------------------------------------------

  let shown = "";

  /** Puts a newer page in place of this one; charts keep their zoom, and folded parts stay as they are. */
  function renew(page) {
    data = JSON.parse(page.getElementById("data").textContent);
    const key = (node) => `${node.closest("section")?.id} ${node.dataset.title ?? node.querySelector("summary")?.textContent}`;
    const before = new Map([...document.querySelectorAll("main .plot, main details")].map((node) => [key(node), node]));
    for (const node of page.querySelectorAll("main .plot, main details")) {
      const old = before.get(key(node));
      if (!old) continue;
      if (node.tagName === "DETAILS") { node.open = old.open; continue; }
      old.dataset.chart = node.dataset.chart;
      node.replaceWith(old);
    }
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
    legend();
    redraw();
    plots().forEach((plot) => watch.observe(plot));
  }

  async function refresh() {
    const status = element("live");
    const playing = [...document.querySelectorAll("video")].some((video) => !video.paused);
    if (!status.querySelector("input").checked || playing || document.hidden) return;
    try {
      const text = await (await fetch(location.pathname, { cache: "no-cache" })).text();
      if (shown && text !== shown) renew(new DOMParser().parseFromString(text, "text/html"));
      shown = text;
      status.dataset.state = "live";
      status.querySelector("span").textContent = `live, ${new Date().toLocaleTimeString()}`;
    } catch {
      status.dataset.state = "lost";
      status.querySelector("span").textContent = "the server does not answer";
    }
  }

  // -- start ----------------------------------------------------------------------------------------------------

  /** Loads plotly, which a page in a file holds compressed. */
  async function library() {
    const packed = element("library");
    if (!packed) return;
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  theme();
  legend();
  library().then(() => {
    plots().forEach((plot) => watch.observe(plot));
    if (element("live")) setInterval(refresh, 3000);
  });
})();
