"use strict";

/* Why two ops share a kernel, or do not: the answer of `mlirstitch explain --why`, as its lines of text.
   data: as page_data (view.py) makes it; first, second: places among data.ops. */
function whyLines(data, first, second) {
  const id = (number) => data.ops[number][0] + "." + data.ops[number][1];
  const shown = (number) => {
    const line = data.ops[number][4];
    return id(number) + " " + data.ops[number][2] + (line ? " (" + line + ")" : "");
  };
  const pairLines = (pair) => {
    const [producer, consumer, ...rest] = pair;
    const together = rest[2];
    const [tensor, size, rule, reason, detail] = [rest[0], rest[1], rest[3], rest[4], rest[5]].map((t) => data.texts[t]);
    const lines = [shown(producer) + " -> " + shown(consumer) + ": " + tensor + ", " + size];
    lines.push(together
      ? "  together  cluster " + data.ops[consumer][0] + ", " + rule + ": " + reason
      : "  apart     " + rule + ": " + reason);
    return detail ? lines.concat(detail.split("; ").map((answer) => " ".repeat(12) + answer)) : lines;
  };
  for (const [source, target] of [[first, second], [second, first]]) {
    const direct = data.pairs.filter((pair) => pair[0] === source && pair[1] === target);
    if (direct.length) return direct.flatMap(pairLines);
  }
  for (const [source, target] of [[first, second], [second, first]]) {
    const path = shortestPath(data.pairs, source, target);
    if (path.length) {
      return ["no tensor goes from " + id(first) + " to " + id(second) + " directly; the shortest way is"]
        .concat(path.flatMap(pairLines).map((line) => "  " + line));
    }
  }
  const lines = ["neither of " + id(first) + " and " + id(second) + " depends on the other"];
  const [a, b] = [data.ops[first], data.ops[second]];
  if (a[0] !== b[0]) {
    return lines.concat("  " + id(first) + " is in cluster " + a[0] + ", " + id(second) + " in cluster " + b[0]);
  }
  const parts = data.parts[a[0]] || [];
  const packed = parts.length > 1 && parts.every((part) => part.length)
    && !parts.some((part) => part.includes(a[1]) && part.includes(b[1]));
  return lines.concat("  cluster " + a[0] + " computes both in one kernel" + (packed ? ", in blocks of their own (pack)" : ""));
}

function shortestPath(pairs, source, target) {
  const following = new Map();
  for (const pair of pairs) {
    if (!following.has(pair[0])) following.set(pair[0], []);
    following.get(pair[0]).push(pair);
  }
  const reached = new Map([[source, null]]);
  const queue = [source];
  for (const node of queue) {
    for (const pair of following.get(node) || []) {
      if (reached.has(pair[1])) continue;
      reached.set(pair[1], pair);
      queue.push(pair[1]);
      if (pair[1] === target) {
        const path = [];
        for (let step = pair; step; step = reached.get(step[0])) path.unshift(step);
        return path;
      }
    }
  }
  return [];
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = new Map(data.ops.map((op, number) => [op[0] + "." + op[1], number]));
  const $ = (name) => document.getElementById(name);
  let chosen = [];

  function toggle(id) {
    choose(chosen.includes(id) ? chosen.filter((other) => other !== id) : chosen.slice(-1).concat(id));
  }

  function choose(ids) {
    chosen = ids;
    document.querySelectorAll(".chosen").forEach((element) => element.classList.remove("chosen"));
    chosen.forEach((name) => document.querySelectorAll(`[data-op="${name}"]`).forEach((e) => e.classList.add("chosen")));
    $("answer").hidden = chosen.length === 0;
    $("asked").textContent = chosen.length === 1 ? `Why ${chosen[0]} and … ? Choose another op.` : `Why ${chosen.join(" and ")} ?`;
    $("text").textContent = chosen.length === 2 ? whyLines(data, place.get(chosen[0]), place.get(chosen[1])).join("\n") : "";
  }

  function open(element) {
    for (let e = element; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    if (element) element.scrollIntoView({ block: "start" });
  }

  function act(element) {
    if (element.dataset.op !== undefined) toggle(element.dataset.op);
    else if (element.dataset.cluster !== undefined) {
      history.replaceState(null, "", "#cluster-" + element.dataset.cluster);
      open($("cluster-" + element.dataset.cluster));
    }
  }

  function filter() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.toLowerCase().includes(word));
    const kept = new Set(), clusters = new Set();
    data.ops.forEach((op) => {
      const id = op[0] + "." + op[1];
      const title = document.querySelector(`#cluster-${op[0]} > summary .name`).textContent;
      if (has([id, op[2], op[3], op[4], title].join(" "))) { kept.add(id); clusters.add(String(op[0])); }
    });
    document.querySelectorAll("tr[data-row]").forEach((row) => { row.hidden = !kept.has(row.dataset.row); });
    document.querySelectorAll("tr[data-apart]").forEach((row) => { row.hidden = !row.dataset.apart.split(" ").some((id) => kept.has(id)); });
    document.querySelectorAll("details.cluster").forEach((e) => { e.hidden = words.length > 0 && !clusters.has(e.id.slice(8)); });
    document.querySelectorAll(".box[data-cluster]").forEach((e) => e.classList.toggle("dim", words.length > 0 && !clusters.has(e.dataset.cluster)));
    document.querySelectorAll(".box[data-op]").forEach((e) => e.classList.toggle("dim", !kept.has(e.dataset.op)));
    document.querySelectorAll("g.edge").forEach((edge) => {
      const ends = edge.dataset.ends.split(" ");
      edge.classList.toggle("dim", words.length > 0 && !ends.some((key) => kept.has(key) || clusters.has(key)));
    });
    if (words.length) {
      const first = document.querySelector(".box[data-cluster]:not(.dim)"), view = document.querySelector(".graph .scroll");
      if (first) view.scrollTop += first.getBoundingClientRect().top - view.getBoundingClientRect().top - 40;
    }
    $("found").textContent = words.length ? `${kept.size} of ${data.ops.length} ops` : "";
  }

  document.addEventListener("click", (event) => {
    const element = event.target.closest("[data-op], [data-cluster]");
    if (element) { act(element); return; }
    const link = event.target.closest('a[href^="#"]');
    if (link) open($(link.getAttribute("href").slice(1)));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose([]);
    if ((event.key === "Enter" || event.key === " ") && event.target.matches("g.box")) { event.preventDefault(); act(event.target); }
  });
  const near = (event, on) => {
    const box = event.target.closest("g.box");
    if (!box) return;
    const key = box.dataset.op || box.dataset.cluster;
    box.parentElement.querySelectorAll("g.edge").forEach((edge) => edge.classList.toggle("near", on && edge.dataset.ends.split(" ").includes(key)));
  };
  document.addEventListener("pointerover", (event) => near(event, true));
  document.addEventListener("pointerout", (event) => near(event, false));
  let waiting = 0;
  $("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 80); });
  $("forget").addEventListener("click", () => choose([]));
  $("open-all").addEventListener("click", () => document.querySelectorAll("details.cluster").forEach((e) => { e.open = true; }));
  $("close-all").addEventListener("click", () => document.querySelectorAll("details.cluster").forEach((e) => { e.open = false; }));
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details.cluster, details.kernel").forEach((e) => { e.open = true; }));
  if (location.hash.length > 1) open(document.getElementById(decodeURIComponent(location.hash.slice(1))));
}

if (typeof document !== "undefined") start();
