"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const ROW = 21;

  // --- elements; names of stages, files and functions only ever become text nodes ---

  function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) element.append(child instanceof Node ? child : String(child));
    }
    return element;
  }
  // Control characters and marks that turn the direction of a line are shown, not obeyed.
  const visible = (text) => String(text)
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]/g,
      (c) => `⟨${c.charCodeAt(0).toString(16).toUpperCase()}⟩`);
  const seconds = (s) => (s >= 60 ? `${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${s.toFixed(2)} s`);
  const cell = (s) => (s >= 0.005 ? s.toFixed(2) : "–");
  const share = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–");

  // --- tables ---

  const used = data.kinds.filter(([kind]) => data.stages.some((row) => (row.kinds[kind] || 0) >= 0.005));
  function table(caption, first, rows, more) {
    const head = [first, ...used.map(([, title]) => title), "total", ...more.map(([title]) => title)];
    return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
      el("table", {}, el("caption", {}, caption),
        el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, rows.map((row) => {
          const most = Math.max(...used.map(([kind]) => row.kinds[kind] || 0));
          return el("tr", {}, el("th", { scope: "row" }, visible(row.stage || `${row.process} (pid ${row.pid})`)),
            used.map(([kind]) => {
              const value = row.kinds[kind] || 0;
              return el("td", { class: value >= 0.005 && value === most ? `heavy ${kind}` : null }, cell(value));
            }),
            el("td", {}, cell(row.seconds)), more.map(([, value]) => el("td", {}, value(row))));
        }))));
  }
  const none = (value) => (value === null ? "–" : cell(value));
  const stages = table("Seconds by stage and kind of work, over all processes", "stage", data.stages, [
    ["share", (row) => (row.stage === data.driver ? "–" : share(row.seconds, data.seconds))],
    ["CPU time", (row) => none(row.processor_seconds)],
    ["other threads", (row) => none(row.other_threads_seconds)],
  ]);
  const processes = table("Seconds by process", "process", data.processes, [["samples", (row) => row.samples]]);

  // --- the flame graph ---

  const graph = el("div", { class: "flame", role: "tree", "aria-label": "Flame graph: callers above what they call" });
  const detail = el("p", { class: "detail", "aria-live": "polite" });
  const found = el("span", { "aria-live": "polite" });
  const search = el("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  const choice = el("select", { id: "graph" }, data.graphs.map((one, at) => el("option", { value: at }, one.title)));
  let nodes = [];
  let root = null;
  let zoomed = null;
  let current = null;

  function load(at) {
    nodes = data.graphs[at].nodes.map(([caller, frame, time, kind]) => {
      const [file, name, line] = data.frames[frame];
      const place = file && line ? `${file}:${line}` : file;
      return { caller, time, kind: data.kinds[kind], name: visible(name), place: visible(place), children: [], depth: 0 };
    });
    for (const node of nodes) {
      node.caller = node.caller < 0 ? null : nodes[node.caller];
      if (node.caller) {
        node.caller.children.push(node);
        node.depth = node.caller.depth + 1;
      }
    }
    root = nodes[0];
    root.name = "all";
    // Stages stay in the order in which documents pass them; functions go by their time.
    for (const node of nodes) if (node !== root) node.children.sort((a, b) => b.time - a.time);
    const order = data.stages.map((row) => visible(row.stage));
    root.children.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
    zoom(root);
  }
  const words = (node) => `${node.name}${node.place ? ` (${node.place})` : ""}: ${seconds(node.time)}, ` +
    `${share(node.time, root.time)} of the total${zoomed === root ? "" : `, ${share(node.time, zoomed.time)} of ${zoomed.name}`}, mostly ${node.kind[1]}`;

  function zoom(node, focus) {
    zoomed = node;
    draw();
    show(node, focus);
  }
  function draw() {
    graph.replaceChildren();
    for (const node of nodes) node.box = null;
    let deepest = 0;
    const place = (node, left, width, around) => {
      if (width < 0.06) return;
      const box = el("div", { role: "treeitem", "aria-level": node.depth + 1, tabindex: "-1", "aria-label": words(node), title: words(node), class: `${node.kind[0]}${around ? " around" : ""}` }, width > 2 ? node.name : "");
      box.style.left = `${left}%`;
      box.style.width = `${width}%`;
      box.style.top = `${node.depth * ROW}px`;
      box.addEventListener("click", () => zoom(node, true));
      box.addEventListener("mouseenter", () => { detail.textContent = words(node); });
      node.box = box;
      graph.append(box);
      deepest = Math.max(deepest, node.depth);
      if (around) return;
      let at = left;
      for (const child of node.children) {
        const wide = (width * child.time) / node.time;
        place(child, at, wide, false);
        at += wide;
      }
    };
    const path = [];
    for (let node = zoomed.caller; node; node = node.caller) path.unshift(node);
    for (const node of path) place(node, 0, 100, true);
    place(zoomed, 0, 100, false);
    graph.style.height = `${(deepest + 1) * ROW}px`;
    mark();
  }
  function show(node, focus) {
    if (current && current.box) current.box.tabIndex = -1;
    current = node;
    node.box.tabIndex = 0;
    if (focus) node.box.focus({ preventScroll: true });
    detail.textContent = words(node);
  }
  function mark() {
    const wanted = search.value.trim().toLowerCase();
    let time = 0;
    const matches = (node) => wanted && `${node.name} ${node.place}`.toLowerCase().includes(wanted);
    const walk = (node, inside) => {
      const hit = matches(node);
      if (hit && !inside) time += node.time;
      if (node.box) node.box.classList.toggle("hit", Boolean(hit));
      for (const child of node.children) walk(child, inside || hit);
    };
    walk(root, false);
    found.textContent = wanted ? `${share(time, root.time)} of the total (${seconds(time)}) is marked` : "";
  }
  const beside = (step) => {
    const row = nodes.filter((node) => node.box && node.depth === current.depth)
      .sort((a, b) => parseFloat(a.box.style.left) - parseFloat(b.box.style.left));
    return row[row.indexOf(current) + step];
  };
  graph.addEventListener("keydown", (event) => {
    const moves = {
      ArrowDown: () => current.children.find((node) => node.box),
      ArrowUp: () => current.caller,
      ArrowRight: () => beside(1),
      ArrowLeft: () => beside(-1),
    };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in moves) {
      const next = moves[event.key]();
      if (next) show(next, true);
    } else if (event.key === "Enter" || event.key === " ") zoom(current, true);
    else if (event.key === "Escape" || event.key === "Backspace") zoom(zoomed.caller || root, true);
    else if (event.key === "Home") zoom(root, true);
    else return;
    event.preventDefault();
  });
  search.addEventListener("input", mark);
  choice.addEventListener("change", () => load(Number(choice.value)));
  const whole = el("button", { type: "button" }, "Show all");
  whole.addEventListener("click", () => zoom(root, true));

  document.body.append(el("main", {},
    el("h1", {}, "Profile: ", el("bdi", {}, visible(data.pipeline))),
    el("p", {}, "Where each stage spent its time. Seconds are summed over the workers' main threads and include waiting."),
    stages,
    el("h2", {}, "Flame graph"),
    el("p", {}, "The width of a frame is its time. Click or press Enter to zoom in, Escape to zoom out, arrows to move."),
    el("div", { class: "tools" },
      el("label", { for: "graph" }, "Show ", choice), el("label", { for: "search" }, "Search ", search), whole, found),
    el("ul", { class: "legend" }, used.map(([kind, title]) => el("li", {}, el("i", { class: kind }), title))),
    graph, detail,
    el("h2", {}, "Processes"), processes));
  if (data.graphs.length) load(0);
})();
