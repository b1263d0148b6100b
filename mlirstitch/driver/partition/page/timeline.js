"use strict";

/* Seconds with the unit that suits. */
function duration(seconds) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
    if (Math.abs(seconds) >= size) return trimmed(seconds / size) + " " + unit;
  }
  return trimmed(seconds / 1e-9) + " ns";
}

function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; number >= 999.5 && unit < 4; unit++) number /= 1000;
  return trimmed(number) + " " + units[unit];
}

function trimmed(number) {
  return String(Number(number.toPrecision(3)));
}

/* A round number of seconds so that about `count` steps fill `span`. */
function tickStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

/* Runs of computation of one kind and one micro-batch, without a gap of more than `gap`, copies between them included:
   [start, end, kind, place]. */
function runs(tasks, communication, gap) {
  const found = [];
  for (const [start, length, kind, place] of tasks) {
    if (kind >= communication) continue;
    const last = found[found.length - 1];
    const near = last && start - last[1] <= gap;
    if (near && (kind === LOCAL || (last[2] === kind && last[3] === place))) {
      last[1] = start + length;
    } else if (near && last[2] === LOCAL) {
      [last[1], last[2], last[3]] = [start + length, kind, place];
    } else {
      found.push([start, start + length, kind, place]);
    }
  }
  return found;
}

const LOCAL = 3;
const COMMUNICATION = 4;
const LANES = { compute: [2, 30], communication: [36, 14], memory: [54, 36] };

if (typeof document !== "undefined") start();

function start() {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const root = document.documentElement;
  const total = data.seconds || 1;
  const most = Math.max(1, ...data.rows.map((row) => row.peak));
  const lanes = [...document.querySelectorAll("canvas.lane")];
  let view = [0, total];
  let drawing = false;

  const x = (seconds, width) => ((seconds - view[0]) / (view[1] - view[0])) * width;

  function context(canvas) {
    const scale = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = '11px system-ui, "DejaVu Sans", sans-serif';
    return [pen, width, height];
  }

  /* Colors as they are in the theme that is shown: a canvas knows no light-dark(). */
  function palette() {
    const probe = document.createElement("i");
    root.append(probe);
    const read = (name) => { probe.style.color = "var(--" + name + ")"; return getComputedStyle(probe).color; };
    const found = { kinds: data.kinds.map(read) };
    for (const name of ["ink", "faint", "rule", "memory", "paper"]) found[name] = read(name);
    probe.remove();
    return found;
  }

  function drawAxis(colors) {
    const [pen, width, height] = context($("axis"));
    const step = tickStep(view[1] - view[0], Math.max(2, width / 90));
    pen.fillStyle = colors.faint;
    for (let at = Math.ceil(view[0] / step) * step; at <= view[1]; at += step) {
      const place = x(at, width);
      pen.fillRect(Math.round(place), height - 5, 1, 5);
      const text = at === 0 ? "0" : duration(at);
      pen.fillText(text, Math.max(0, Math.min(width - pen.measureText(text).width, place + 3)), height - 7);
    }
  }

  function drawLane(canvas, colors) {
    const row = data.rows[Number(canvas.dataset.row)];
    const [pen, width] = context(canvas);
    const gap = (view[1] - view[0]) / width;
    const [top, tall] = LANES.compute;
    for (const [start, end, kind, place] of runs(row.tasks, COMMUNICATION, gap)) {
      const [left, right] = [x(start, width), x(end, width)];
      if (right < 0 || left > width) continue;
      pen.fillStyle = colors.kinds[kind];
      pen.globalAlpha = place >= 0 && place % 2 ? 0.72 : 1;
      pen.fillRect(left, top, Math.max(0.6, right - left), tall);
      pen.globalAlpha = 1;
      const from = Math.max(0, left);
      const room = Math.min(width, right) - from;
      if (place >= 0 && room > 12 && kind !== LOCAL) {
        const text = String(place);
        const wide = pen.measureText(text).width;
        pen.fillStyle = colors.ink;
        if (wide + 4 < room) pen.fillText(text, from + (room - wide) / 2, top + tall / 2 + 4);
      }
    }
    const [middle, low] = LANES.communication;
    for (const [start, length, kind] of row.tasks) {
      if (kind < COMMUNICATION) continue;
      const [left, right] = [x(start, width), x(start + length, width)];
      if (right < 0 || left > width) continue;
      pen.fillStyle = colors.kinds[kind];
      pen.fillRect(left, middle, Math.max(0.6, right - left - 0.4), low);
    }
    drawMemory(pen, width, row, colors);
  }

  function drawMemory(pen, width, row, colors) {
    const [top, tall] = LANES.memory;
    const bottom = top + tall;
    const height = (live) => bottom - (live / most) * tall;
    pen.beginPath();
    pen.moveTo(x(0, width), bottom);
    let live = 0;
    for (const [at, now] of row.memory) {
      pen.lineTo(x(at, width), height(live));
      pen.lineTo(x(at, width), height(now));
      live = now;
    }
    pen.lineTo(x(total, width), height(live));
    pen.lineTo(x(total, width), bottom);
    pen.closePath();
    pen.fillStyle = colors.memory;
    pen.globalAlpha = 0.4;
    pen.fill();
    pen.globalAlpha = 1;
    pen.fillStyle = colors.rule;
    pen.fillRect(0, bottom, width, 1);
  }

  function draw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      root.style.setProperty("--bar", document.querySelector("header").offsetHeight + "px");
      const colors = palette();
      drawAxis(colors);
      for (const canvas of lanes) drawLane(canvas, colors);
    });
  }

  function show(from, span) {
    const length = Math.min(total, Math.max(total * 1e-6, span));
    const first = Math.min(Math.max(0, from), total - length);
    view = [first, first + length];
    draw();
  }

  function zoom(factor, share = 0.5) {
    const span = view[1] - view[0];
    show(view[0] + span * share * (1 - factor), span * factor);
  }

  function describe(row, seconds, height) {
    const [from, to] = [LANES.communication[0], LANES.memory[0]];
    if (height >= to) {
      let live = 0;
      for (const [at, now] of row.memory) { if (at > seconds) break; live = now; }
      return duration(seconds) + "\n" + bytes(live) + " live";
    }
    const near = (view[1] - view[0]) / 400;
    let best = null;
    for (const task of row.tasks) {
      if ((task[2] >= COMMUNICATION) !== (height >= from - 2)) continue;
      const away = Math.max(task[0] - seconds, seconds - task[0] - task[1], 0);
      if (away <= near && (best === null || away < best[0])) best = [away, task];
    }
    if (best === null) return "";
    const task = best[1];
    return data.names[task[4]] + "\n" + data.kinds[task[2]] + ", " + duration(task[1]) + " from " + duration(task[0]);
  }

  for (const canvas of lanes) {
    const row = data.rows[Number(canvas.dataset.row)];
    let held = null;
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      if (held !== null) {
        const span = view[1] - view[0];
        show(held[1] - ((event.clientX - held[0]) / box.width) * span, span);
      }
      const seconds = view[0] + ((event.clientX - box.left) / box.width) * (view[1] - view[0]);
      const text = describe(row, seconds, event.clientY - box.top);
      $("tip").hidden = !text;
      $("tip").textContent = text;
      const wide = $("tip").offsetWidth;
      $("tip").style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - wide - 8)) + "px";
      $("tip").style.top = Math.min(event.clientY + 14, innerHeight - $("tip").offsetHeight - 4) + "px";
    });
    canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") { held = [event.clientX, view[0]]; canvas.setPointerCapture(event.pointerId); }
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { held = null; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width);
    }, { passive: false });
  }
  $("in").addEventListener("click", () => zoom(0.5));
  $("out").addEventListener("click", () => zoom(2));
  $("all").addEventListener("click", () => show(0, total));
  $("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(document.querySelector("main"));
  draw();
}
