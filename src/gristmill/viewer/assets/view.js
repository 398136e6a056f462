// The viewer's page. Everything that comes from documents is set as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const FILTERS = ["status", "reason", "score_name", "score_min", "score_max", "source", "label"];
const state = {
  run: null,      // what the server says about the run
  query: "",      // the conditions, as sent
  words: "",      // the text that is searched for and marked
  starts: [""],   // where each page begins; the last one is shown
  next: null,     // where the search continues
  hits: [],
  current: null,  // the ref of the open document
  asked: 0,       // answers to earlier questions are thrown away
  counted: 0,     // the question whose documents are being counted
};

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (name === "click") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const number = (value) => Number(value).toLocaleString("en-US");
const documents = (count) => `${number(count)} ${count === 1 ? "document" : "documents"}`;
const matching = (count) => `${documents(count)} ${count === 1 ? "matches" : "match"}`;

function score(value) {
  if (value === null || value === undefined) return "";
  const known = Number(value);
  return Number.isFinite(known) ? String(Number(known.toPrecision(5))) : String(value);
}

async function ask(path, given = {}, options = {}) {
  const address = new URL(path, location.href);
  address.search = new URLSearchParams(given);
  const answer = await fetch(address, options);
  const found = await answer.json().catch(() => ({error: `The viewer answered ${answer.status}.`}));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function tell(error) {
  const gone = error instanceof TypeError;
  $("found").textContent = gone ? "The viewer does not answer. Is `gristmill view` still running?" : error.message;
}

// --- the run ---

async function start() {
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);  // the token stays a cookie
  try {
    state.run = await ask("/api/run");
  } catch (error) {
    tell(error);
    return;
  }
  const run = state.run;
  document.title = `${run.output.split("/").pop()}: documents`;
  $("output").textContent = run.output;
  const gone = new Map();
  for (const one of run.reasons) gone.set(one.outcome, (gone.get(one.outcome) || 0) + one.documents);
  $("totals").replaceChildren();
  for (const [name, count] of [["kept", run.kept], ["dropped", gone.get("dropped") || 0], ["quarantined", gone.get("quarantined") || 0]]) {
    $("totals").append(make("span", {class: count ? `badge ${name}` : "badge", text: `${number(count)} ${name}`}), " ");
  }
  showNotes(run.notes);
  showLabels(run.labels);
  fillReasons(run.reasons);
  $("sources").replaceChildren(...run.sources.map((name) => make("option", {value: name})));
  $("score-choice").hidden = !run.scores.length;
  for (const name of run.scores) $("score_name").append(make("option", {value: name, text: name}));
  const open = new URLSearchParams(location.hash.slice(1)).get("document");
  restore();
  await search();
  if (open) await show(open);
}

function showNotes(notes) {
  $("notes").replaceChildren(...notes.map((note) => make("p", {text: note, dir: "auto"})));
}

function showLabels(labels) {
  const given = labels.keep + labels.drop;
  $("labels").textContent = given ? `${number(given)} labelled` : "";
  $("labels").title = labels.file || "";
  $("export").hidden = !given;
  state.run.labels = labels;
}

function fillReasons(reasons) {
  const stages = new Map();
  for (const one of reasons) stages.set(one.stage, [...(stages.get(one.stage) || []), one]);
  for (const [stage, found] of stages) {
    const group = make("optgroup", {label: stage});
    const total = found.reduce((sum, one) => sum + one.documents, 0);
    if (found.length > 1) group.append(make("option", {value: JSON.stringify([stage, ""]), text: `any reason (${number(total)})`}));
    for (const one of found) {
      group.append(make("option", {value: JSON.stringify([stage, one.reason]), text: `${one.reason} (${number(one.documents)})`}));
    }
    $("reason").append(group);
  }
}

// --- searching ---

function conditions() {
  const given = {};
  for (const name of FILTERS) if ($(name).value.trim() && name !== "reason") given[name] = $(name).value.trim();
  if ($("reason").value) [given.stage, given.reason] = JSON.parse($("reason").value);
  if ($("kind").value === "text" && $("words").value) given.text = $("words").value;
  return given;
}

function restore() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const name of [...FILTERS, "kind", "words"]) {
    const field = $(name);
    const value = kept.get(name);
    if (value === null) continue;
    if (field.tagName !== "SELECT" || [...field.options].some((one) => one.value === value)) field.value = value;
  }
  $("more").open = ["score_name", "score_min", "score_max", "source", "label"].some((name) => $(name).value);
}

function remember() {
  const kept = new URLSearchParams();
  for (const name of [...FILTERS, "words"]) if ($(name).value) kept.set(name, $(name).value);
  if ($("words").value) kept.set("kind", $("kind").value);
  if (state.current) kept.set("document", state.current);
  history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname);
}

async function search(options = {}) {
  state.starts = [""];
  state.words = $("kind").value === "text" ? $("words").value : "";
  remember();
  if ($("kind").value === "name" && $("words").value.trim()) await find($("words").value.trim());
  else await page(options);
}

async function find(name) {
  const asked = ++state.asked;
  try {
    const found = await ask("/api/find", {name});
    if (asked !== state.asked) return;
    state.next = null;
    state.hits = [];
    $("hits").replaceChildren();
    addHits(found.hits, asked);
    $("found").textContent = found.note || documents(found.hits.length);
    showPages(true);
    if (found.hits.length === 1) await show(found.hits[0].ref);
  } catch (error) {
    if (asked === state.asked) tell(error);
  }
}

async function page({random = false} = {}) {
  const asked = ++state.asked;
  state.hits = [];
  state.next = null;
  $("hits").setAttribute("aria-busy", "true");
  const given = conditions();
  if (random) given.start = "random";
  else given.cursor = state.starts[state.starts.length - 1];
  $("found").textContent = "Searching…";
  try {
    await fill(given, asked, true);
  } catch (error) {
    if (asked === state.asked) tell(error);
  } finally {
    if (asked === state.asked) $("hits").removeAttribute("aria-busy");
  }
}

// Asks until a page is full; a search in texts stops after each turn, since it reads all of them.
async function fill(given, asked, isFirst) {
  for (;;) {
    const found = await ask("/api/search", given);
    if (asked !== state.asked) return;
    if (isFirst) {
      $("hits").replaceChildren();
      if (given.start === "random") state.starts = [found.start];
      isFirst = false;
    }
    state.next = found.cursor;
    addHits(found.hits, asked);
    showFound(found, given, asked);
    const full = state.hits.length >= 50;
    if (found.cursor === null || full || given.text) {
      showPages(full || found.cursor === null);
      return;
    }
    delete given.start;
    given.cursor = found.cursor;
  }
}

async function goOn() {
  const asked = ++state.asked;
  try {
    await fill({...conditions(), cursor: state.next}, asked, false);
  } catch (error) {
    if (asked === state.asked) tell(error);
  }
}

function showPages(isWhole) {
  $("previous-page").disabled = state.starts.length < 2;
  $("next-page").disabled = !(isWhole && state.next !== null);
  $("continue").hidden = isWhole || state.next === null;
}

function showFound(found, given, asked) {
  const searched = `searched ${number(found.searched)} of ${documents(found.documents)}`;
  const done = found.cursor === null;
  const first = state.starts.length === 1 && !state.starts[0];
  let told = "";
  if (found.matching !== null) told = matching(found.matching);
  else if (done && first) told = matching(state.hits.length);
  else if (given.text) told = done ? "No more documents match" : `${documents(state.hits.length)} found, ${searched}`;
  else {
    told = `${documents(state.hits.length)} on this page`;
    if (state.counted !== asked) count({...conditions()}, asked);
    state.counted = asked;
  }
  $("found").textContent = [told, ...found.problems].join(". ") + ".";
}

// Counts what the manifest cannot tell, turn by turn, while the list is already there.
async function count(given, asked) {
  let total = 0;
  given.cursor = "";
  while (asked === state.asked) {
    const found = await ask("/api/count", given).catch(() => null);
    if (found === null || asked !== state.asked) return;
    total += found.count;
    const done = found.cursor === null;
    $("found").textContent = done
      ? `${matching(total)}.`
      : `${matching(total)} so far, searched ${number(found.searched)} of ${documents(state.run.documents)}…`;
    if (done) return;
    given.cursor = found.cursor;
  }
}

// --- the list ---

function addHits(hits, asked) {
  const added = hits.map(hitElement);
  $("hits").append(...added);
  state.hits.push(...hits);
  if (!state.hits.length) $("hits").replaceChildren(make("li", {class: "empty", text: "No document on this page."}));
  markCurrent();
  if (hits.length) snippets(hits, asked);
}

function hitElement(hit) {
  const place = make("span", {class: "name", dir: "auto", text: hit.id || hit.ref});
  const why = [hit.reason, hit.score === null ? "" : `score ${score(hit.score)}`].filter(Boolean).join(", ");
  const head = make("span", {class: "line"},
    make("span", {class: `badge ${hit.status}`, text: hit.status}), " ",
    make("span", {class: "reason", text: why}), " ", labelMark(hit.label));
  const button = make("button", {type: "button", class: "hit", "data-ref": hit.ref, click: () => show(hit.ref, true)},
    head, make("span", {class: "snippet", dir: "auto", text: "…"}), place);
  return make("li", {}, button);
}

function labelMark(label) {
  const signs = {right: "✓ right", wrong: "✗ wrong"};
  return make("span", {class: `mark ${label || ""}`, text: signs[label] || ""});
}

async function snippets(hits, asked) {
  const refs = hits.map((hit) => hit.ref).join("\n");
  let found = {};
  try {
    found = (await ask("/api/snippets", {refs, text: state.words})).snippets;
  } catch {
    return;
  }
  if (asked !== state.asked) return;
  for (const button of $("hits").querySelectorAll("button.hit")) {
    const one = found[button.dataset.ref];
    if (!one) continue;
    const place = button.querySelector(".snippet");
    if (one.text === undefined) {
      place.textContent = one.note;
      place.classList.add("missing");
    } else {
      fillText(place, one.text || "(empty)");
    }
    const hit = state.hits.find((other) => other.ref === button.dataset.ref);
    if (one.id && hit && !hit.id) {
      hit.id = one.id;
      button.querySelector(".name").textContent = one.id;
    }
  }
}

// A text with the searched words marked.
function fillText(element, text) {
  element.replaceChildren();
  appendText(element, text);
}

function appendText(element, text) {
  const words = state.words.toLowerCase();
  const lower = text.toLowerCase();
  if (!words || lower.length !== text.length) {
    element.append(text);
    return;
  }
  let at = 0;
  for (let found = lower.indexOf(words), marks = 0; found >= 0 && marks < 1000; found = lower.indexOf(words, at), marks++) {
    element.append(text.slice(at, found), make("mark", {text: text.slice(found, found + words.length)}));
    at = found + words.length;
  }
  element.append(text.slice(at));
}

function markCurrent() {
  for (const button of $("hits").querySelectorAll("button.hit")) {
    if (button.dataset.ref === state.current) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

// --- one document ---

async function show(ref, focus = false) {
  state.current = ref;
  markCurrent();
  remember();
  document.body.classList.add("reading");
  const panel = $("document");
  panel.setAttribute("aria-busy", "true");
  let found;
  try {
    found = await ask("/api/document", {ref});
  } catch (error) {
    found = null;
    panel.replaceChildren(backButton(), make("h2", {text: ref, dir: "auto"}), make("p", {class: "missing", text: error.message}));
  }
  if (state.current !== ref) return;
  panel.removeAttribute("aria-busy");
  if (found) panel.replaceChildren(...documentParts(found));
  panel.scrollTop = 0;
  if (focus) panel.focus({preventScroll: true});
  if (matchMedia("(max-width: 56rem)").matches) window.scrollTo(0, 0);
}

// For screens on which the list is not beside the document.
const backButton = () => make("div", {class: "back"},
  make("button", {type: "button", text: "Back to the list", click: back}),
  make("button", {type: "button", text: "Previous", click: () => step(-1)}),
  make("button", {type: "button", text: "Next", click: () => step(1)}));

function back() {
  document.body.classList.remove("reading");
  const button = $("hits").querySelector("[aria-current]");
  if (button) button.focus();
}

function documentParts(found) {
  const parts = [backButton()];
  const head = make("div", {class: "head"},
    make("h2", {dir: "auto", text: found.id || found.ref}),
    make("p", {class: "line"}, make("span", {class: `badge ${found.status}`, text: found.status}), " ",
      make("span", {class: "path", text: found.ref})));
  parts.push(head, labelButtons(found), whyPart(found));
  for (const one of found.quarantine) parts.push(quarantinePart(one));
  parts.push(textPart(found));
  if (found.scores.length) {
    parts.push(tablePart("Scores", ["stage", "score", "value"], found.scores.map((one) => [one.stage, one.score, score(one.value)])));
  }
  if (found.fields.length) {
    const rows = found.fields.map((one) => [one.name, one.value + (one.cut ? " …" : "")]);
    parts.push(tablePart("Fields", ["field", "value"], rows));
  }
  return parts;
}

function labelButtons(found) {
  const can = state.run.labels.writable;
  const group = make("div", {class: "rate", role: "group", "aria-label": "Was the decision right?"},
    make("span", {text: "Was the decision right?"}));
  for (const [label, text] of [["right", "✓ Right"], ["wrong", "✗ Wrong"]]) {
    group.append(make("button", {
      type: "button", class: `label ${label}`, "data-label": label, text, disabled: !can,
      "aria-pressed": String(found.label === label), click: () => setLabel(label),
    }));
  }
  return group;
}

async function setLabel(label) {
  const ref = state.current;
  const button = document.querySelector(`button.label.${label}`);
  if (!ref || !button || button.disabled) return;
  const wanted = button.getAttribute("aria-pressed") === "true" ? null : label;
  try {
    const options = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({ref, label: wanted})};
    const saved = await ask("/api/label", {}, options);
    showLabels(saved.labels);
    const hit = state.hits.find((one) => one.ref === ref);
    if (hit) hit.label = saved.label;
    const line = [...$("hits").querySelectorAll("button.hit")].find((one) => one.dataset.ref === ref);
    if (line) line.querySelector(".mark").replaceWith(labelMark(saved.label));
    if (state.current !== ref) return;
    for (const other of document.querySelectorAll("button.label")) {
      other.setAttribute("aria-pressed", String(other.dataset.label === saved.label));
    }
  } catch (error) {
    showNotes([...state.run.notes, error.message]);
  }
}

function part(title, ...children) {
  return make("section", {}, make("h3", {text: title}), ...children);
}

function whyPart(found) {
  return part("Why", make("ul", {class: "why"}, ...found.lines.map((line) => make("li", {text: line, dir: "auto"}))),
    make("p", {class: "path", text: `Source: ${found.source}`}));
}

function quarantinePart(one) {
  return part("Quarantined record", make("p", {text: one.cause}),
    make("pre", {class: "text", tabindex: "0", dir: "auto", text: one.raw + (one.cut ? "…" : "")}));
}

function tablePart(title, names, rows) {
  const head = make("tr", {}, ...names.map((name) => make("th", {scope: "col", text: name})));
  const body = rows.map((row) => make("tr", {}, ...row.map((value) => make("td", {text: value, dir: "auto"}))));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return part(title, make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": title}, table));
}

// --- its text: as read, as written, and the difference ---

function textPart(found) {
  const place = make("div", {class: "texts"});
  const views = [[found.side === "output" ? "As written" : "As read", () => showText(place, found, found.side)]];
  if (found.has_output) views.push(["As written", () => showSide(place, found.ref, "output")]);
  if (found.has_diff) views.push([found.status === "duplicate" ? "Compared with the survivor" : "Difference", () => showDiff(place, found.ref)]);
  const section = part("Text");
  if (views.length > 1) {
    const choice = make("div", {class: "views", role: "group", "aria-label": "Which text"});
    views.forEach(([name, render], at) => {
      choice.append(make("button", {type: "button", text: name, "aria-pressed": String(at === 0), click: (event) => {
        for (const other of choice.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
        render();
      }}));
    });
    section.append(choice);
  }
  section.append(place);
  views[0][1]();
  return section;
}

async function showSide(place, ref, side) {
  place.replaceChildren(make("p", {class: "empty", text: "Reading…"}));
  try {
    showText(place, {ref, ...await ask("/api/text", {ref, side, offset: 0})}, side);
  } catch (error) {
    place.replaceChildren(make("p", {class: "missing", text: error.message}));
  }
}

function showText(place, found, side) {
  place.replaceChildren();
  if (found.note) place.append(make("p", {class: "missing", text: found.note}));
  if (!found.chars) {
    if (!found.note) place.append(make("p", {class: "empty", text: "The text is empty."}));
    return;
  }
  const text = make("pre", {class: "text", tabindex: "0", dir: "auto"});
  appendText(text, found.text);
  place.append(text);
  let shown = [...found.text].length;
  const more = make("p", {class: "more"});
  const told = make("span");
  const button = make("button", {type: "button", text: "Show more", click: async () => {
    button.disabled = true;
    try {
      const next = await ask("/api/text", {ref: found.ref, side, offset: shown});
      appendText(text, next.text);
      shown += [...next.text].length;
      refresh();
    } catch (error) {
      told.textContent = `${error.message} `;
    }
    button.disabled = false;
  }});
  const refresh = () => {
    told.textContent = shown < found.chars ? `${number(shown)} of ${number(found.chars)} characters. ` : `${number(found.chars)} characters.`;
    button.hidden = shown >= found.chars;
  };
  refresh();
  more.append(told, button);
  place.append(more);
}

async function showDiff(place, ref) {
  place.replaceChildren(make("p", {class: "empty", text: "Comparing…"}));
  let found;
  try {
    found = await ask("/api/diff", {ref});
  } catch (error) {
    place.replaceChildren(make("p", {class: "missing", text: error.message}));
    return;
  }
  place.replaceChildren(...found.notes.map((note) => make("p", {class: "missing", text: note})));
  if (found.equal) place.append(make("p", {text: "Both are the same text."}));
  if (!found.lines.length) return;
  place.append(make("p", {class: "path"}, make("del", {text: found.before}), " ", make("ins", {text: found.after})));
  place.append(diffElement(found.lines.slice(2)));
}

function diffElement(lines) {
  const box = make("div", {class: "diff", tabindex: "0", role: "region", "aria-label": "Difference"});
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const next = lines[at + 1] || "";
    if (line.startsWith("@@")) {
      if (at) box.append(make("div", {class: "gap", text: "⋯"}));
    } else if (line.startsWith("-") && next.startsWith("+") && !(lines[at + 2] || "").startsWith("+")) {
      box.append(...pair(line.slice(1), next.slice(1)));
      at++;
    } else if (line.startsWith("-")) {
      box.append(changed("del", "−", line.slice(1)));
    } else if (line.startsWith("+")) {
      box.append(changed("ins", "+", line.slice(1)));
    } else {
      box.append(make("div", {class: "same", dir: "auto", text: line.slice(1) || " "}));
    }
  }
  return box;
}

function changed(tag, sign, ...content) {
  return make(tag, {class: "row"}, make("span", {class: "sign", "aria-hidden": "true", text: sign}),
    make("span", {class: "content", dir: "auto"}, ...content));
}

// Two lines of which one took the place of the other: what is not equal at both ends is marked.
function pair(before, after) {
  let start = 0;
  const most = Math.min(before.length, after.length);
  while (start < most && before[start] === after[start]) start++;
  let end = 0;
  while (end < most - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  const cut = (text) => [text.slice(0, start), make("mark", {text: text.slice(start, text.length - end)}), text.slice(text.length - end)];
  return [changed("del", "−", ...cut(before)), changed("ins", "+", ...cut(after))];
}

// --- moving about ---

async function step(by) {
  const at = state.hits.findIndex((hit) => hit.ref === state.current);
  const next = at < 0 ? (by > 0 ? 0 : -1) : at + by;
  if (next >= 0 && next < state.hits.length) {
    await show(state.hits[next].ref);
    const button = $("hits").querySelector("[aria-current]");
    if (button) button.scrollIntoView({block: "nearest"});
    if (button && document.activeElement && document.activeElement.classList.contains("hit")) button.focus();
  } else if (by > 0 && !$("next-page").disabled) {
    await nextPage();
    if (state.hits.length) await show(state.hits[0].ref);
  } else if (by < 0 && at === 0 && !$("previous-page").disabled) {
    await previousPage();
    if (state.hits.length) await show(state.hits[state.hits.length - 1].ref);
  }
}

async function nextPage() {
  state.starts.push(state.next);
  await page();
  $("hits").scrollTop = 0;
}

async function previousPage() {
  state.starts.pop();
  await page();
}

async function exportLabels() {
  try {
    const answer = await fetch("/api/export");
    if (!answer.ok) throw new Error((await answer.json()).error);
    const link = make("a", {href: URL.createObjectURL(await answer.blob()), download: "labels.jsonl"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    const skipped = Number(answer.headers.get("X-Gristmill-Skipped"));
    const told = `${documents(answer.headers.get("X-Gristmill-Written") * 1)} exported to labels.jsonl.`;
    const without = skipped ? ` ${documents(skipped)} left out: the text is gone, or the input has changed.` : "";
    showNotes([...state.run.notes, told + without]);
  } catch (error) {
    showNotes([...state.run.notes, error.message]);
  }
}

$("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
for (const name of ["status", "reason", "score_name", "label"]) $(name).addEventListener("change", () => search());
for (const name of ["score_min", "score_max", "source"]) $(name).addEventListener("change", () => search());
$("random").addEventListener("click", () => {
  if ($("kind").value === "name") $("words").value = "";
  search({random: true});
});
$("clear").addEventListener("click", () => {
  $("filters").reset();
  search();
});
$("next-page").addEventListener("click", nextPage);
$("previous-page").addEventListener("click", previousPage);
$("continue").addEventListener("click", goOn);
$("export").addEventListener("click", exportLabels);

document.addEventListener("keydown", (event) => {
  const target = event.target;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (typing) target.blur();
    else back();
    return;
  }
  if (typing) return;
  const inList = target.classList.contains("hit");
  if (event.key === "/") {
    $("words").focus();
    $("words").select();
  } else if (event.key === "j" || (event.key === "ArrowDown" && inList)) step(1);
  else if (event.key === "k" || (event.key === "ArrowUp" && inList)) step(-1);
  else if (event.key === "r") setLabel("right");
  else if (event.key === "w") setLabel("wrong");
  else return;
  event.preventDefault();
});

start();
