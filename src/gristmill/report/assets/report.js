"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";

  // --- elements; text of documents only ever becomes text nodes ---

  function add(parent, children) {
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) {
        parent.append(child instanceof Node ? child : String(child));
      }
    }
    return parent;
  }
  function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    return add(element, children);
  }
  function svg(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    return add(element, children);
  }
  let ids = 0;
  const newId = () => `part-${(ids += 1)}`;

  // --- numbers and texts ---

  const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));
  const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
  function share(part, whole) {
    if (!whole) return "–";
    const percent = (100 * part) / whole;
    if (percent > 0 && percent < 0.1) return "<0.1 %";
    if (percent < 100 && percent > 99.9) return ">99.9 %";
    return `${percent.toFixed(percent % 1 ? 1 : 0)} %`;
  }
  function size(bytes) {
    if (bytes === null || bytes === undefined) return "–";
    for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]]) {
      if (bytes >= unit) return `${(bytes / unit).toFixed(1)} ${name}`;
    }
    return `${bytes} B`;
  }
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 10) return `${seconds.toFixed(2)} s`;
    if (seconds < 60) return `${seconds.toFixed(0)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  }
  function figure(value) {
    if (value === null || value === undefined) return "none";
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    return String(Number(value.toPrecision(4)));
  }
  const when = (text) => (text ? text.replace("T", " ").replace(/\..*|\+.*/, "") + " UTC" : "–");
  const signed = (n) => (n > 0 ? `+${count(n)}` : n < 0 ? `−${count(-n)}` : "0");

  // Control characters and marks that turn the direction of a line are shown, not obeyed.
  function visible(text) {
    const whole = text.isWellFormed && !text.isWellFormed() ? text.toWellFormed() : text;
    return whole
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/[\u007f-\u009f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]/g,
        (c) => `⟨${c.charCodeAt(0).toString(16).toUpperCase()}⟩`);
  }
  const name = (text) => el("bdi", {}, visible(String(text)));

  // --- tables, meters, charts ---

  function table(caption, heads, rows) {
    const cell = (tag, value, head) => {
      const attributes = head.kind ? { class: head.kind } : {};
      if (tag === "th") attributes.scope = "col";
      return el(tag, attributes, value);
    };
    return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
      el("table", {}, el("caption", {}, caption),
        el("thead", {}, el("tr", {}, heads.map((head) => cell("th", head.title, head)))),
        el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, at) => cell("td", value, heads[at])))))));
  }
  const n = (title) => ({ title, kind: "n" });
  const t = (title) => ({ title });
  const bar = () => ({ title: el("span", { "aria-hidden": "true" }, ""), kind: "bar" });
  function meter(...parts) {
    const line = el("div", { class: "meter", "aria-hidden": "true" });
    for (const [value, kind] of parts) {
      const piece = el("i", { class: kind || "" });
      piece.style.width = `${Math.max(0, Math.min(100, 100 * (value || 0)))}%`;
      line.append(piece);
    }
    return line;
  }
  const more = (title, ...children) => el("details", {}, el("summary", {}, title), children);
  const chartBox = (height) => svg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" });

  function lineChart(title, seconds, lines, format) {
    const highest = Math.max(...lines.flatMap((line) => line.values.filter((v) => v !== null)), 0) || 1;
    const last = seconds[seconds.length - 1] || 1;
    const box = chartBox(50);
    lines.forEach((line, number) => {
      const points = line.values.map((v, i) => [(100 * seconds[i]) / last, 48 - (46 * (v || 0)) / highest]);
      const path = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
      if (lines.length === 1 && points.length) box.append(svg("path", { class: "area", d: `${path}L${points[points.length - 1][0].toFixed(2)} 50L${points[0][0].toFixed(2)} 50Z` }));
      box.append(svg("path", { class: `stroke ${["", "b", "c"][number % 3]}`, d: path }));
    });
    const step = Math.max(1, Math.ceil(seconds.length / 12));
    const rows = seconds.map((s, i) => i).filter((i) => i % step === 0 || i === seconds.length - 1);
    return el("figure", { class: "chart" }, el("figcaption", {}, title),
      el("div", { class: "axis" }, el("span", {}, `highest ${format(highest)}`)),
      box, el("div", { class: "axis" }, el("span", {}, "0 s"), el("span", {}, duration(last))),
      lines.length > 1 ? el("div", { class: "axis" }, lines.map((line, i) => el("span", {}, `${["solid", "dashed", "dotted"][i % 3]}: ${line.name}`))) : null,
      more("As a table", table(title, [n("Time"), ...lines.map((line) => n(line.name))],
        rows.map((i) => [duration(seconds[i]), ...lines.map((line) => format(line.values[i]))]))));
  }

  function pairChart(title, labels, before, after, words) {
    const sums = [before, after].map((side) => side.reduce((a, b) => a + b, 0) || 1);
    const highest = Math.max(...before.map((v) => v / sums[0]), ...after.map((v) => v / sums[1]), 1e-9);
    const box = chartBox(50);
    const wide = 100 / labels.length;
    labels.forEach((_, i) => {
      [[before[i] / sums[0], "before-bar", 0.1], [after[i] / sums[1], "kept-bar", 0.5]].forEach(([value, kind, at]) => {
        const high = (48 * value) / highest;
        box.append(svg("rect", { class: kind, x: (wide * (i + at)).toFixed(2), y: (50 - high).toFixed(2), width: (wide * 0.38).toFixed(2), height: high.toFixed(2) }));
      });
    });
    return el("figure", { class: "chart" }, el("figcaption", {}, title),
      el("ul", { class: "legend" }, el("li", {}, el("i", { class: "before" }), words[0]), el("li", {}, el("i"), words[1])),
      box, el("div", { class: "axis" }, el("span", {}, labels[0]), el("span", {}, labels[labels.length - 1])),
      more("As a table", table(title, [t(""), n(words[0]), n(words[1])],
        labels.map((label, i) => [name(label), `${count(before[i])} (${share(before[i], sums[0])})`, `${count(after[i])} (${share(after[i], sums[1])})`]))));
  }

  // --- documents ---

  function shownText(text, marks, from, length) {
    const letters = Array.from(text);  // marks count characters, not UTF-16 units
    const box = el("div", { class: "text", dir: "auto", tabindex: "0", role: "group", "aria-label": "Text of the document" });
    let at = 0;
    if (from) box.append(el("span", { class: "soft" }, `… (${count(from)} characters before) `));
    for (const [start, end] of marks || []) {
      if (start > at) box.append(visible(letters.slice(at, start).join("")));
      box.append(el("mark", {}, visible(letters.slice(Math.max(start, at), end).join(""))));
      at = Math.max(at, end);
    }
    box.append(visible(letters.slice(at).join("")));
    const rest = length - from - letters.length;
    if (rest > 0) box.append(el("span", { class: "soft" }, ` … (${plural(rest, "character")} more)`));
    if (!length) box.append(el("span", { class: "soft" }, "(empty text)"));
    return box;
  }
  const called = (one) => name(one.id === null || one.id === undefined ? one.place : one.id);

  // --- the parts of a run's page ---

  const sections = [];
  function section(title, id, ...children) {
    const heading = newId();
    sections.push([title, id]);
    return el("section", { id, "aria-labelledby": heading }, el("h2", { id: heading }, title), children);
  }
  const lost = (stage) => Object.values(stage.dropped || {}).reduce((a, b) => a + b, 0);
  const held = (stage) => Object.values(stage.quarantined || {}).reduce((a, b) => a + b, 0);
  const badge = (status) => el("span", { class: `badge ${status === "done" ? "" : status === "failed" ? "bad" : "warn"}` }, status || "unknown");

  function facts(run) {
    const speed = run.wall_seconds ? `${count(Math.round(run.rows_read / run.wall_seconds))} documents/s` : null;
    const fact = (title, value, small) => el("div", {}, el("dt", {}, title), el("dd", {}, value, small ? el("small", {}, small) : null));
    return el("dl", { class: "facts" },
      fact("Documents read", count(run.rows_read), size(run.source_bytes)),
      fact("Kept", count(run.rows_written), `${share(run.rows_written, run.rows_read)}, ${size(run.output_bytes)}`),
      fact("Dropped", count(run.rows_dropped), share(run.rows_dropped, run.rows_read)),
      fact("Quarantined", count(run.rows_quarantined), run.rows_quarantined ? share(run.rows_quarantined, run.rows_read) : null),
      fact("Time", duration(run.wall_seconds), speed),
      fact("Peak memory", run.peak_memory_bytes ? size(run.peak_memory_bytes) : "–"));
  }

  function banners(run, missing) {
    const found = [];
    if (run.status === "running") found.push(el("div", { class: "banner" }, el("p", {}, `This run has not finished: it is still running, or was killed after ${when(run.updated)}. The figures cover ${count(run.partitions_committed || 0)} of ${plural(run.partitions, "partition")}, those committed so far. Run the same command again to resume.`)));
    if (run.status === "failed") found.push(el("div", { class: "banner bad" }, el("p", {}, "The run failed. The figures cover what was committed before."), el("pre", {}, visible(run.error || ""))));
    if (run.status === "interrupted") found.push(el("div", { class: "banner" }, el("p", {}, "The run was interrupted. The figures cover what was committed before. Run the same command again to resume.")));
    if (missing.length) found.push(el("div", { class: "banner" }, el("p", {}, "Some parts of the record could not be read:"), el("ul", {}, missing.map((one) => el("li", {}, visible(one))))));
    return found;
  }

  function attention(run) {
    const alarms = run.alarms || [], notices = run.notices || [];
    const deaths = Object.entries(run.worker_deaths || {});
    if (!alarms.length && !notices.length && !deaths.length) return null;
    return section("Worth a look", "attention",
      alarms.length ? el("ul", {}, alarms.map((one) => el("li", {}, visible(one)))) : null,
      deaths.length ? el("p", {}, `Workers that died: ${deaths.map(([cause, number]) => `${number} (${cause})`).join(", ")}.`) : null,
      notices.length ? more(plural(notices.length, "notice"), el("ul", {}, notices.map((one) => el("li", {}, `${one.level}: `, visible(one.message))))) : null);
  }

  function flow(run, stages) {
    if (!stages.length) return section("What happened to the documents", "flow", el("p", {}, "The run recorded no stages."));
    const most = Math.max(...stages.map((s) => Math.max(s.rows_in, s.rows_out)), 1);
    const wide = (rows) => (84 * rows) / most;  // what leaves needs room to bend
    const list = el("ol", { class: "flow" });
    const picture = (into, out) => {
      const box = chartBox(100);
      const a = wide(into), b = wide(out);
      if (a > b) {
        const thick = Math.min(56, Math.max(2, 0.8 * (a - b))), bend = b + (100 - b) * 0.4;
        const above = 50 - thick / 2, under = 50 + thick / 2;
        box.append(svg("path", { class: "branch", d: `M${b} 0H${Math.max(a, b + 0.6)}C${a} ${above - 5} ${bend} ${above} 100 ${above}V${under}C${bend} ${under} ${b} ${under - 5} ${b} 0Z` }));
        box.append(svg("path", { class: "trunk", d: `M0 0H${b}V100H0Z` }));
      } else box.append(svg("path", { class: "trunk", d: `M0 0H${a}C${a} 50 ${b} 50 ${b} 100H0Z` }));
      return box;
    };
    const row = (kind, into, out, ...children) => list.append(el("li", { class: kind }, el("div", { class: "band", "aria-hidden": "true" }, picture(into, out)), el("div", { class: "step" }, children)));
    const source = stages.find((s) => s.created && !s.rows_in) || stages[0];
    row("end", source.created || source.rows_in, source.created || source.rows_in, el("span", { class: "number", id: "flow-read" }, count(run.rows_read)), " documents read");
    let quiet = [];
    const flush = () => {
      if (!quiet.length) return;
      const rows = quiet[0].rows_out;
      const changed = quiet.reduce((a, s) => a + (s.changed || 0), 0);
      const words = [quiet.length === 1 ? [name(quiet[0].stage), " dropped nothing"] : null, changed ? `, changed ${plural(changed, "text")}` : null];
      row("quiet", rows, quiet[quiet.length - 1].rows_out,
        quiet.length === 1 ? words : more([`${quiet.length} stages dropped nothing`, words[1]], el("ul", { class: "reasons" }, quiet.map((s) => el("li", {}, name(s.stage), s.changed ? ` (changed ${count(s.changed)})` : "")))));
      quiet = [];
    };
    for (const stage of stages) {
      const gone = lost(stage), away = held(stage);
      const into = stage.rows_in + (stage === source || !stage.rows_in ? stage.created : 0);
      const made = stage.rows_in && stage.created;
      if (!gone && !away && !made) {
        if (stage !== source && stage !== stages[stages.length - 1]) quiet.push(stage);
        continue;
      }
      flush();
      const reasons = Object.entries(stage.dropped || {}).sort((x, y) => y[1] - x[1]);
      row("drop", into, stage.rows_out,
        el("h3", { "data-stage": stage.stage, "data-dropped": gone }, name(stage.stage)),
        gone ? el("div", { class: "number" }, `−${count(gone)} `, el("span", { class: "soft" }, `(${share(gone, into)} of ${count(into)})`)) : null,
        away ? el("div", { class: "number" }, `${count(away)} quarantined`) : null,
        made ? el("div", { class: "number soft" }, `created ${plural(stage.created, "new document")}`) : null,
        reasons.length ? reasonList(reasons) : null);
    }
    flush();
    const last = stages[stages.length - 1];
    row("end", last.rows_out, last.rows_out, el("span", { class: "number", id: "flow-kept" }, count(run.rows_written)), ` documents kept (${share(run.rows_written, run.rows_read)})`);
    return section("What happened to the documents", "flow",
      el("p", { class: "soft small" }, "The width of the green band is the number of documents; branches to the right were dropped."),
      list,
      more("All stages as a table", table("Documents by stage", [t("Stage"), n("In"), n("Kept"), n("Dropped"), n("Quarantined"), n("Changed"), n("Busy")],
        stages.map((s) => [name(s.stage), count(s.rows_in || s.created), count(s.rows_out), count(lost(s)), count(held(s)), count(s.changed || 0), duration(s.busy_seconds)]))),
      stages.filter((s) => Object.keys(s.skipped || {}).length).map((s) => el("p", { class: "soft small", "data-skipped": s.stage },
        name(s.stage), " skipped what is not a document: ", Object.entries(s.skipped).sort((x, y) => y[1] - x[1]).map(([kind, number], at) => [at ? ", " : "", name(kind), ` ${count(number)}`]))));
  }
  function reasonList(reasons) {
    const line = ([reason, number]) => el("li", {}, name(reason), el("span", { class: "soft number" }, ` ${count(number)}`));
    const first = el("ul", { class: "reasons" }, reasons.slice(0, 3).map(line));
    return reasons.length > 3 ? [first, more(`${reasons.length - 3} more reasons`, el("ul", { class: "reasons" }, reasons.slice(3).map(line)))] : first;
  }

  function dropped(run, stages, groups) {
    const all = stages.flatMap((s) => Object.entries(s.dropped || {}).map(([reason, number]) => ({ stage: s.stage, reason, number })));
    all.sort((a, b) => b.number - a.number);
    if (!all.length) return null;
    const shown = new Map(groups.map((one) => [JSON.stringify([one.stage, one.reason]), one]));
    const most = all[0].number;
    const examples = all.map((one) => shown.get(JSON.stringify([one.stage, one.reason]))).filter((one) => one && one.documents.length);
    const several = (one) => one.stage !== one.reason;
    return section("Why documents were dropped", "dropped",
      table("Dropped documents by reason", [t("Reason"), n("Documents"), n("Of all read"), bar()],
        all.slice(0, 60).map((one) => [[name(one.reason), el("small", {}, name(one.stage))], count(one.number), share(one.number, run.rows_read), meter([one.number / most])])),
      all.length > 60 ? el("p", { class: "soft small" }, `and ${all.length - 60} more reasons`) : null,
      examples.length ? el("p", {}, "Examples, as they were read and shortened. Where a rule can locate it, the offending part is ", el("mark", {}, "marked"), ".") : null,
      examples.map((group) => {
        const total = all.find((one) => one.stage === group.stage && one.reason === group.reason).number;
        return el("details", { class: "group" },
          el("summary", {}, el("h3", {}, name(group.reason)), el("span", { class: "soft small" }, several(group) ? [" · ", name(group.stage)] : "", ` · ${plural(group.documents.length, "example")} of ${count(total)}`)),
          group.documents.map((one) => el("div", { class: "document" },
            el("div", { class: "small" }, el("strong", {}, called(one)),
              one.score !== null && one.score !== undefined ? el("span", { class: "soft" }, ` · score ${figure(one.score)}`, one.threshold !== null && one.threshold !== undefined ? `, threshold ${figure(one.threshold)}` : "") : null),
            one.text === undefined ? el("p", { class: "soft small" }, "The text was not read for this page.") : shownText(one.text, one.marks, one.from, one.length))));
      }));
  }

  function scores(part, stages) {
    if (!part.filters.length) return null;
    const useful = part.filters.filter((one) => one.grid.length > 1);
    const gone = new Map(stages.map((s) => [s.stage, s.dropped || {}]));
    const drops = (one) => one.documents === "dropped" || (one.stage === one.filter ? Object.keys(gone.get(one.stage) || {}).length > 0 : (gone.get(one.stage) || {})[one.filter] > 0);
    const active = useful.filter(drops), idle = useful.filter((one) => !drops(one));
    const whole = useful.some((one) => one.documents === "all");
    return section("Scores and thresholds", "scores",
      el("p", {}, whole
        ? `Every score of ${plural(part.documents, "document")}${part.is_sample ? " (a sample of the run)" : ""} is known. Move a threshold to see how many of them would be kept if nothing else changed.`
        : `The ledger holds the scores of the documents that a filter dropped${part.is_sample ? " (here a sample)" : ""}. Move a threshold to see how many of them would pass that filter; later filters may still drop them. ${part.recorded === "all" ? "The other scores are recorded too: 'gristmill report' builds this page from all of them." : "With --scores all, a run records the scores of all documents, so that thresholds can also be tightened here."}`),
      el("ul", { class: "legend" }, whole ? el("li", {}, el("i"), "kept") : null, el("li", {}, el("i", { class: "dropped" }), "dropped")),
      el("div", { class: "filters" }, active.map(filterBox)),
      idle.length ? more(`${idle.length} filters dropped nothing`, el("div", { class: "filters" }, idle.map(filterBox))) : null);
  }
  function filterBox(one) {
    const last = one.grid.length - 1;
    const joined = (values) => values.slice(1, -1).map((v, i) => v + (i === 0 ? values[0] : 0) + (i === values.length - 3 ? values[values.length - 1] : 0));
    const kept = joined(one.kept), gone = joined(one.dropped);
    const highest = Math.sqrt(Math.max(...kept.map((v, i) => v + gone[i]), 1));
    const box = chartBox(50);
    kept.forEach((v, i) => {
      const whole = (49 * Math.sqrt(v + gone[i])) / highest;  // roots, so that small numbers are seen beside large ones
      const part = v + gone[i] ? (whole * gone[i]) / (v + gone[i]) : 0;
      const x = (100 * i) / last, width = (92 / last).toFixed(2);
      if (whole - part > 0) box.append(svg("rect", { class: "kept-bar", x: x.toFixed(2), y: (50 - whole).toFixed(2), width, height: (whole - part).toFixed(2) }));
      if (part > 0) box.append(svg("rect", { class: "dropped-bar", x: x.toFixed(2), y: (50 - part).toFixed(2), width, height: part.toFixed(2) }));
    });
    const place = (value) => one.grid.findIndex((g) => g === value);
    const upright = (kind, at) => svg("line", { class: kind, x1: (100 * at) / last, x2: (100 * at) / last, y1: 0, y2: 50 });
    const now = { lower: one.lower === null ? null : place(one.lower), upper: one.upper === null ? null : place(one.upper) };
    const keeps = (sides) => {
      const inside = (sides.upper === null ? one.free : one.upto[sides.upper]) - (sides.lower === null ? 0 : one.below[sides.lower]);
      return one.inverted ? one.free - Math.max(inside, 0) : Math.max(inside, 0);
    };
    const result = el("output", { "aria-live": "polite" });
    const sides = { ...now };
    const sliders = ["lower", "upper"].filter((side) => now[side] !== null && now[side] >= 0).map((side) => {
      box.append(upright("limit", now[side]));
      const trial = upright("trial", now[side]);
      box.append(trial);
      const id = newId();
      const own = one.parameters[side === "lower" ? 0 : 1];
      const value = el("span", { class: "number" }, figure(one[side]));
      const input = el("input", { type: "range", id, min: 0, max: last, step: 1, value: now[side], "aria-valuetext": figure(one[side]), "data-stage": one.stage, "data-filter": one.filter, "data-side": side });
      input.value = now[side];
      input.addEventListener("input", () => {
        const at = Number(input.value);
        sides[side] = at;
        for (const end of ["x1", "x2"]) trial.setAttribute(end, (100 * at) / last);
        value.textContent = figure(one.grid[at]);
        input.setAttribute("aria-valuetext", figure(one.grid[at]));
        tell();
      });
      return [el("label", { for: id }, own ? el("code", {}, own) : side === "lower" ? "At least" : "At most", ": ", value), input];
    });
    function tell() {
      const number = keeps(sides), before = keeps(now);
      const same = sides.lower === now.lower && sides.upper === now.upper;
      if (one.documents === "all") {
        result.replaceChildren(...[same ? `${plural(number, "document")} kept` : `${plural(number, "document")} kept instead of ${count(before)} (${signed(number - before)})`,
          !same && one.unseen.length && number > before ? `; an upper bound, because ${one.unseen.join(" and ")} did not process them` : ""].filter(Boolean));
      } else {
        const passing = keeps(sides) - before;
        result.replaceChildren(same ? `${plural(one.free, "document")} dropped here` : `${count(Math.max(passing, 0))} of the ${count(one.free)} documents dropped here would pass`);
      }
    }
    tell();
    const middle = one.grid[Math.round(last / 2)];
    return el("figure", { class: "chart filter" },
      el("figcaption", {}, name(one.filter), one.stage === one.filter ? null : el("span", { class: "soft small" }, " · ", name(one.stage))),
      box, el("div", { class: "axis" }, [one.grid[0], middle, one.grid[last]].map((value) => el("span", {}, figure(Number(value.toPrecision(3)))))),
      sliders, result,
      one.unordered ? el("p", { class: "soft small" }, `${plural(one.unordered, "document")} without a numeric score.`) : null,
      more("As a table", table(`Scores of ${one.filter}`, [n("Score from"), n("Kept"), n("Dropped")],
        one.grid.map((g, i) => i).filter((i) => i % Math.ceil(one.grid.length / 16) === 0).map((i) => {
          const until = Math.min(i + Math.ceil(one.grid.length / 16), one.grid.length);
          const sum = (values) => values.slice(i + 1, until + 1).reduce((a, b) => a + b, 0) + (i === 0 ? values[0] : 0);
          return [figure(one.grid[i]), count(sum(one.kept)), count(sum(one.dropped))];
        }))));
  }

  function texts(part) {
    if (!part.lengths && !part.languages) return null;
    const words = ["before (input)", "after (output)"];
    const sample = part.text_sample;
    const labels = part.lengths ? part.lengths.from.map((from) => `${count(from)} characters or more`) : [];
    return section("Lengths and languages", "texts",
      el("p", { class: "soft small" }, `From a sample: ${plural(sample.before, "document")} of the input and ${count(sample.after)} of the output.`),
      el("div", { class: "charts" },
        part.lengths ? pairChart("Length in characters", labels, part.lengths.before, part.lengths.after, words) : null,
        part.languages ? languageTable(part.languages, words) : null));
  }
  function languageTable(part, words) {
    const sums = ["before", "after"].map((side, i) => part[side].reduce((a, b) => a + b, part.others[i]) || 1);
    const line = (title, before, after) => [title, share(before, sums[0]), share(after, sums[1]), [meter([before / sums[0], "before"]), meter([after / sums[1], "kept"])]];
    return el("div", {}, table("Language, as a column of the documents says", [t("Language"), n(words[0]), n(words[1]), bar()],
      [...part.names.map((one, i) => line(name(one), part.before[i], part.after[i])), ...(part.others[0] + part.others[1] ? [line("others", part.others[0], part.others[1])] : [])]));
  }

  function differing(a, b) {
    // Words that only one of two texts has at this place, by the longest common sequence of words.
    const x = a.match(/\s+|[^\s]+/g) || [], y = b.match(/\s+|[^\s]+/g) || [];
    const wide = y.length + 1, best = new Uint16Array((x.length + 1) * wide);
    for (let i = x.length - 1; i >= 0; i -= 1) {
      for (let j = y.length - 1; j >= 0; j -= 1) {
        best[i * wide + j] = x[i] === y[j] ? best[(i + 1) * wide + j + 1] + 1 : Math.max(best[(i + 1) * wide + j], best[i * wide + j + 1]);
      }
    }
    const sides = [[], []];
    let i = 0, j = 0, from = 0, to = 0;
    const length = (word) => Array.from(word).length;
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) { from += length(x[i]); to += length(y[j]); i += 1; j += 1; }
      else if (j >= y.length || (i < x.length && best[(i + 1) * wide + j] >= best[i * wide + j + 1])) { sides[0].push([from, from + length(x[i])]); from += length(x[i]); i += 1; }
      else { sides[1].push([to, to + length(y[j])]); to += length(y[j]); j += 1; }
    }
    return sides;
  }
  function duplicates(part) {
    if (!part.stages.length && !part.pairs.length) return null;
    return section("Duplicates", "duplicates",
      part.stages.map((one) => {
        const most = Math.max(...one.sizes.map(([, number]) => number));
        return [el("h3", {}, name(one.stage)),
          el("p", {}, `${plural(one.clusters, "cluster")}, ${plural(one.removed, "document")} removed; one document of each cluster is kept.`),
          table(`Clusters of ${one.stage} by size`, [n("Documents in the cluster"), n("Clusters"), bar()],
            one.sizes.slice(0, 20).map(([documents, number]) => [count(documents), count(number), meter([number / most])])),
          one.sizes.length > 20 ? el("p", { class: "soft small" }, `and ${one.sizes.length - 20} larger sizes, up to ${count(one.sizes[one.sizes.length - 1][0])} documents`) : null];
      }),
      part.pairs.length ? el("p", {}, "Examples: removed documents next to their survivors. Differing words are ", el("mark", {}, "marked"), ".") : null,
      part.pairs.map((one) => {
        const both = one.removed_text !== null && one.survivor_text !== null;
        const equal = both && one.removed_text === one.survivor_text;
        const marks = both && !equal ? differing(one.removed_text, one.survivor_text) : [[], []];
        const side = (title, text, mark, length) => el("div", {}, el("div", { class: "small soft" }, title),
          text === null ? el("p", { class: "soft small" }, "The text was not read for this page.") : shownText(text, mark, one.from, length));
        return el("details", { class: "group" },
          el("summary", {}, el("h3", {}, called(one)), el("span", { class: "soft small" }, ` · ${one.stage}`, one.similarity === null ? "" : ` · similarity ${figure(one.similarity)}`, one.size ? ` · cluster of ${count(one.size)}` : "", equal ? " · the same text" : "")),
          el("div", { class: "pair" }, side(["Removed: ", called(one)], one.removed_text, marks[0], one.lengths[0]), side(["Kept: ", name(one.survivor)], one.survivor_text, marks[1], one.lengths[1])));
      }));
  }

  function contamination(part) {
    if (!part) return null;
    return section("Benchmark items", "contamination",
      el("p", {}, `${plural(part.contaminated, "document")} with benchmark items (${part.match}, action ${part.action}).`),
      table("Benchmarks", [t("Benchmark"), n("Items"), n("Searched for"), n("Too short"), n("Found"), n("Mean share")],
        part.benchmarks.map((one) => [name(one.benchmark), count(one.items), count(one.searched), count(one.too_short), count(one.contaminated), figure(one.mean_share)])),
      part.items.map((one) => el("details", { class: "group" },
        el("summary", {}, el("h3", {}, name(one.item)), el("span", { class: "soft small" }, ` · ${plural(one.documents, "document")} · share ${figure(one.share)}`)),
        el("p", { class: "small" }, visible(one.text)),
        one.found_in.map((found) => el("div", {}, el("div", { class: "small soft" }, name(found.document), ` · share ${figure(found.share)}`), shownText(found.passage, [], 0, found.passage.length))))),
      part.items_not_shown ? el("p", { class: "soft small" }, `and ${plural(part.items_not_shown, "more item")}; gristmill contamination shows them.`) : null);
  }

  function quarantine(groups) {
    if (!groups.length) return null;
    return section("Quarantine", "quarantine",
      el("p", {}, "Records that could not be processed. They are neither kept nor dropped; the record holds them as they were read."),
      groups.map((group) => el("details", { class: "group" },
        el("summary", {}, el("h3", {}, name(group.cause)), el("span", { class: "soft small" }, " · ", name(group.stage), ` · ${plural(group.number, "record")}`)),
        group.examples.map((one) => el("div", { class: "document" },
          el("div", { class: "small" }, el("strong", {}, name(one.place)), el("span", { class: "soft" }, " · ", name(one.file), one.offset >= 0 ? `, byte ${count(one.offset)}` : "")),
          el("p", { class: "small" }, visible(one.detail)),
          one.raw ? shownText(one.raw, [], 0, Array.from(one.raw).length) : null)))));
  }

  // Rows are counted when a partition or a batch is done, so that single steps say little: a mean over a tenth of the time.
  function rates(seconds, rows) {
    const span = (seconds[seconds.length - 1] - seconds[0]) / 10 || 1;
    let from = 0;
    const found = seconds.map((s, i) => {
      while (from < i && seconds[from + 1] <= s - span) from += 1;
      return s - seconds[from] >= span * 0.99 ? Math.max(0, (rows[i] - rows[from]) / (s - seconds[from])) : null;
    });
    const first = found.findIndex((v) => v !== null);
    return found.map((v, i) => (v === null ? found[first] : i < first ? found[first] : v));
  }

  function performance_(run, stages, history, suggestion, profile) {
    const parts = [];
    if (history && history.seconds && history.seconds.length > 1) {
      const seconds = history.seconds;
      const speed = rates(seconds, history.rows_read);
      const charts = [lineChart("Documents read per second", seconds, [{ name: "documents/s", values: speed }], (v) => count(Math.round(v)))];
      if ((history.memory_bytes || []).some((v) => v)) charts.push(lineChart("Memory", seconds, [{ name: "memory", values: history.memory_bytes }], size));
      for (const [at, segment] of (history.segments || []).entries()) {
        const called = segment.stages && segment.stages.length ? `${segment.stages[0]}${segment.stages.length > 1 ? " …" : ""}` : `segment ${at + 1}`;
        const lines = [{ name: "workers", values: segment.workers }, { name: "busy", values: segment.busy }];
        if ((segment.queued || []).some((v) => v)) lines.push({ name: "waiting tasks", values: segment.queued });
        if (segment.workers.some((v) => v)) charts.push(lineChart(`Workers: ${visible(called)}`, seconds, lines, (v) => count(v)));
      }
      parts.push(el("div", { class: "charts" }, charts));
    } else parts.push(el("p", { class: "soft" }, "Speed and memory over time were not recorded for this run."));
    const timed = stages.map((s) => [s, (s.busy_seconds || 0), (s.starved_seconds || 0), (s.blocked_seconds || 0)]).filter(([, busy]) => busy > 0);
    if (timed.length) {
      const total = timed.reduce((a, [, busy]) => a + busy, 0) || 1;
      const most = Math.max(...timed.map(([, a, b, c]) => a + b + c));
      timed.sort((x, y) => y[1] - x[1]);
      const waits = timed.some(([, , b, c]) => b + c > 0);
      parts.push(el("h3", {}, "What limited the run"),
        el("p", {}, suggestion ? visible(typeof suggestion === "string" ? suggestion : suggestion.text || "") : ["Stages were busy for ", duration(total), " in total, summed over workers; ", name(timed[0][0].stage), ` took ${share(timed[0][1], total)} of it.`]),
        waits ? el("ul", { class: "legend" }, el("li", {}, el("i"), "busy"), el("li", {}, el("i", { class: "wait" }), "waiting for input"), el("li", {}, el("i", { class: "block" }), "waiting for the next stage")) : null,
        table("Time by stage", [t("Stage"), n("Busy"), n("Share"), ...(waits ? [n("Starved"), n("Blocked")] : []), n("Workers"), bar()],
          timed.slice(0, 20).map(([s, a, b, c]) => [name(s.stage), duration(a), share(a, total), ...(waits ? [duration(b), duration(c)] : []), count(s.workers), meter([a / most, "kept"], [b / most, "wait"], [c / most, "block"])])),
        el("p", { class: "soft small" }, `Filters that share a pass over the text are timed together, under the first of them.${waits ? " Stages that run in the same workers wait together." : ""}`));
    }
    if (profile) parts.push(el("p", {}, el("a", { href: profile }, "Profile"), ": the time of each stage by kind of work, and a flame graph."));
    else if (timed.length) parts.push(el("p", { class: "soft small" }, "Run with --profile to see where each stage spends its time, as a table and a flame graph."));
    return section("Speed and memory", "speed", parts);
  }

  // --- the pages ---

  function finish(title, head, body, foot) {
    const links = el("nav", { "aria-label": "Parts of this page" }, el("ul", {}, sections.map(([text, id]) => el("li", {}, el("a", { href: `#${id}` }, text)))));
    document.body.append(
      el("a", { class: "skip", href: "#content" }, "Skip to the content"),
      el("header", {}, el("h1", {}, title), head, links),
      el("main", { id: "content", tabindex: "-1" }, body),
      el("footer", {}, el("p", {}, foot)));
  }

  function runPage() {
    const { run, stages } = data;
    const body = [attention(run), flow(run, stages), dropped(run, stages, data.dropped), scores(data.scores, stages), texts(data), duplicates(data.duplicates), contamination(data.contamination), quarantine(data.quarantine), performance_(run, stages, data.history, data.suggestion, data.profile)];
    const span = run.finished ? `${when(run.started)} to ${when(run.finished)}` : when(run.started);
    const sampled = data.sample.is_sample ? `Scores, examples and clusters come from a sample: ${plural(data.sample.documents, "document")} in ${plural(data.sample.partitions, "partition")}. 'gristmill report' builds the page from all of them.` : null;
    finish(["Report: ", name(run.pipeline || "run")],
      [el("p", { class: "soft" }, badge(run.status), " ", name(run.output || ""), el("br"), `${span}, executor ${run.executor || "–"}, ${plural(run.partitions || 0, "partition")}`, run.partitions_done_before ? `, ${count(run.partitions_done_before)} done by earlier runs` : ""), banners(run, data.missing), facts(run), sampled ? el("p", { class: "soft small" }, sampled) : null],
      body, `Generated by Gristmill ${data.made_by}, ${when(data.made)}.`);
  }

  function comparePage() {
    const [a, b] = data.runs;
    const difference = (x, y, format) => (x === null || x === undefined || y === null || y === undefined ? "–" : `${y > x ? "+" : y < x ? "−" : ""}${format(Math.abs(y - x))}`);
    const speed = (run) => (run.wall_seconds ? Math.round(run.rows_read / run.wall_seconds) : null);
    const lines = [["Documents read", (r) => r.rows_read, count], ["Kept", (r) => r.rows_written, count], ["Dropped", (r) => r.rows_dropped, count], ["Quarantined", (r) => r.rows_quarantined, count],
      ["Input", (r) => r.source_bytes, size], ["Output", (r) => r.output_bytes, size], ["Time", (r) => r.wall_seconds, duration], ["Documents per second", speed, count], ["Peak memory", (r) => r.peak_memory_bytes, size]];
    const heads = [t(""), n("A"), n("B"), n("Difference")];
    const names = [...new Set([...b.stages, ...a.stages].map((s) => s.stage))];
    const of = (page, stage) => page.stages.find((s) => s.stage === stage);
    const rows = names.map((stage) => [of(a, stage), of(b, stage), stage]);
    const reasons = new Map();
    [a, b].forEach((page, side) => page.stages.forEach((s) => Object.entries(s.dropped || {}).forEach(([reason, number]) => {
      const key = JSON.stringify([s.stage, reason]);
      if (!reasons.has(key)) reasons.set(key, [0, 0]);
      reasons.get(key)[side] += number;
    })));
    const changed = [...reasons].map(([key, [x, y]]) => [...JSON.parse(key), x, y]).sort((p, q) => Math.abs(q[3] - q[2]) - Math.abs(p[3] - p[2]));
    const documents = data.documents;
    const body = [
      section("The two runs", "runs", table("The two runs", heads, [["Status", badge(a.run.status), badge(b.run.status), ""], ...lines.map(([title, get, format]) => [title, format(get(a.run)), format(get(b.run)), difference(get(a.run), get(b.run), format)])])),
      section("Documents with different outcomes", "documents", documents.error ? el("p", {}, visible(documents.error)) : [
        el("p", {}, `${plural(documents.same, "document")} had the same outcome in both runs (matched by ${documents.matched_by}).`),
        el("dl", { class: "facts" }, documents.changes.map(([title, number]) => el("div", {}, el("dt", {}, title), el("dd", {}, count(number))))),
        documents.moves.length ? table("Outcomes that changed, most frequent first", [t("In A"), t("In B"), n("Documents")], documents.moves.map((one) => [name(one.before), name(one.after), count(one.number)])) : null,
        documents.examples.length ? more("Some of these documents", table("Documents", [t("Document"), t("In A"), t("In B")], documents.examples.map((one) => [name(one.id), name(one.before), name(one.after)]))) : null]),
      section("Stages", "stages", table("Dropped documents by stage", [t("Stage"), n("A"), n("B"), n("Difference"), n("Busy in A"), n("Busy in B")],
        rows.filter(([x, y]) => (x && lost(x)) || (y && lost(y)) || !x || !y).map(([x, y, stage]) => [name(stage), x ? count(lost(x)) : "not in this run", y ? count(lost(y)) : "not in this run", x && y ? signed(lost(y) - lost(x)) : "", x ? duration(x.busy_seconds) : "", y ? duration(y.busy_seconds) : ""]))),
      section("Reasons", "reasons", table("Dropped documents by reason", [t("Reason"), n("A"), n("B"), n("Difference")],
        changed.slice(0, 60).map(([stage, reason, x, y]) => [[name(reason), el("small", {}, name(stage))], count(x), count(y), signed(y - x)]))),
      data.thresholds.length ? section("Scores", "scores", table("Filters and their scores", [t("Filter"), n("Bounds in A"), n("Bounds in B"), n("Median score in A"), n("Median score in B")],
        data.thresholds.map((one) => [name(one.filter), ...one.bounds.map(bounds), ...one.medians.map((m) => (m === null ? "–" : figure(m)))])),
      el("p", { class: "soft small" }, "The median covers the documents whose scores are recorded: all of them with --scores all, otherwise those that the filter dropped.")) : null,
    ];
    finish("Two runs compared", [el("p", {}, "A: ", name(a.run.output || ""), " · ", name(a.run.pipeline || ""), `, ${when(a.run.started)}`, el("br"), "B: ", name(b.run.output || ""), " · ", name(b.run.pipeline || ""), `, ${when(b.run.started)}`), banners({}, data.missing)],
      body, `Generated by Gristmill ${data.made_by}, ${when(data.made)}.`);
  }
  function bounds(pair) {
    if (!pair) return "not in this run";
    const [lower, upper] = pair;
    return lower !== null && upper !== null ? `${figure(lower)} to ${figure(upper)}` : lower !== null ? `at least ${figure(lower)}` : upper !== null ? `at most ${figure(upper)}` : "none";
  }

  (data.kind === "comparison" ? comparePage : runPage)();
  let closed = [];
  addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open])")]; closed.forEach((one) => { one.open = true; }); });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
})();
