"use strict";
// Under the pointer a chart says which frames it is over and what its lines are worth there.
(() => {
  const reading = document.getElementById("reading");
  const points = (path) => [...path.getAttribute("d").matchAll(/[ML] (\S+) (\S+)/g)].map((point) => point.slice(1).map(Number));
  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en");

  function read(svg, event) {
    const [left, right, bottom, top, x0, x1, y0, y1] = svg.dataset.frame.split(" ").map(Number);
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const rows = [];
    let at = null;
    for (const path of svg.querySelectorAll("[data-label] > path")) {
      const near = points(path).reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      at ??= near[0];
      rows.push(`${path.parentNode.dataset.label}: ${number(y0 + (bottom - near[1]) / (bottom - top) * (y1 - y0))}`);
    }
    if (at === null || x < left - 8 || x > right + 8) return hide(svg);
    const across = x0 + (at - left) / (right - left) * (x1 - x0);
    reading.textContent = [`at ${number(across)}`, ...rows].join("\n");
    reading.hidden = false;
    reading.style.left = `${Math.min(event.clientX + 14, innerWidth - reading.offsetWidth - 8)}px`;
    reading.style.top = `${Math.min(event.clientY + 14, innerHeight - reading.offsetHeight - 8)}px`;
    let line = svg.querySelector(".pointer");
    if (!line) {
      line = document.createElementNS(svg.namespaceURI, "path");
      line.setAttribute("class", "pointer");
      svg.append(line);
    }
    line.setAttribute("d", `M${at},${top}V${bottom}`);
  }

  function hide(svg) {
    reading.hidden = true;
    svg.querySelector(".pointer")?.remove();
  }

  for (const svg of document.querySelectorAll("svg[data-frame]")) {
    svg.addEventListener("pointermove", (event) => read(svg, event));
    svg.addEventListener("pointerleave", () => hide(svg));
  }
})();
