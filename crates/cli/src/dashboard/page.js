"use strict";
// The page of the dashboard. It asks for the state again and again, and draws the section that the address
// names after '#'. Text of others becomes text nodes only, never markup.
(() => {
  const token = new URLSearchParams(location.search).get("token") || "";
  const main = document.getElementById("section");
  const SVG = "http://www.w3.org/2000/svg";
  const POINTS_MAX = 300;
  const ASK_TIME_MS = 15000;
  const DETAILS_MS = 3000;
  const PAST_MS = 30000;

  let state = null;        // the last answer
  let samples = [];        // samples: objects with the names of the fields
  let last = 0;            // the number of the last sample
  let isPaused = false;
  let silentSince = null;  // when the dashboard itself stopped answering
  let refusal = null;      // what it said instead of figures
  let figure = "requests"; // of the heat map
  let heat = null;
  let advice = null;
  let details = null;      // of the job that is shown
  let past = null;         // of the history
  let pastMinutes = 1440;
  let filesJob = null;     // the job that the files section shows; null: the busiest

  // ---- elements

  // An element. Of the properties, those that begin with "on", and "draw", are functions.
  function h(tag, properties, ...children) {
    const isSvg = ["svg", "path", "line"].includes(tag);
    const one = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "width%") one.style.width = value + "%";
      else if (typeof value === "function") one[name] = value;
      else one.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) one.append(child);
    }
    return one;
  }

  // Makes `old` like `made`, and keeps elements, so that focus and scroll positions stay.
  function patch(old, made) {
    const isSame = old.nodeType === made.nodeType && old.nodeName === made.nodeName;
    if (!isSame) { old.replaceWith(made); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== made.data) old.data = made.data;
      return;
    }
    for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of [...made.attributes]) {
      if (name === "style") old.style.cssText = made.style.cssText;
      else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const name of ["onclick", "onchange", "draw"]) old[name] = made[name];
    const both = [[...old.childNodes], [...made.childNodes]];
    both[1].forEach((child, at) => {
      if (at < both[0].length) patch(both[0][at], child); else old.append(child);
    });
    both[0].slice(both[1].length).forEach((child) => child.remove());
    if (old.nodeName === "SELECT" && document.activeElement !== old) old.value = made.value;
  }

  // ---- figures for people, as the command writes them

  const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);
  function bytes(value) {
    if (!isKnown(value)) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 1000 && unit + 1 < units.length) { value /= 1024; unit += 1; }
    return value.toFixed(unit > 0 && value < 9.95 ? 1 : 0) + " " + units[unit];
  }
  const rate = (value) => isKnown(value) ? bytes(value) + "/s" : "–";
  const count = (value) => isKnown(value) ? Math.round(value).toLocaleString("en-US") : "–";
  function decimal(value) {
    if (!isKnown(value)) return "–";
    return value !== 0 && Math.abs(value) < 10 ? value.toFixed(1) : count(value);
  }
  const perSecond = (value) => isKnown(value) ? decimal(value) + "/s" : "–";
  function span(seconds) {
    if (!isKnown(seconds)) return "–";
    if (seconds < 1e-3) return decimal(seconds * 1e6) + " µs";
    if (seconds < 1) return decimal(seconds * 1e3) + " ms";
    if (seconds < 120) return decimal(seconds) + " s";
    if (seconds < 7200) return count(seconds / 60) + " min";
    return seconds < 172800 ? decimal(seconds / 3600) + " h" : decimal(seconds / 86400) + " d";
  }
  const nanos = (value) => value > 0 ? span(value / 1e9) : "–";
  const timeOfDay = (ms) => new Date(ms).toLocaleTimeString("en-GB");
  const clock = timeOfDay;
  const date = (ms) => new Date(ms).toLocaleString("en-GB");
  const percent = (part, whole) => whole > 0 ? Math.round(100 * part / whole) + " %" : "–";
  const plural = (number, noun) => count(number) + " " + noun + (number === 1 ? "" : "s");
  const jobName = (name) => name === "" ? "-" : name;
  const UNITS = {
    "per second": perSecond, "share": (value) => Math.round(100 * value) + " %",
    "bytes per second": rate, "writers": count,
  };

  // ---- parts of a section

  const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), ...children);
  const grid = (...children) => h("div", { class: "grid" }, ...children);
  // A fact: its name, its text, its exact value, and a remark.
  function facts(list) {
    return h("dl", { class: "facts" }, list.filter(Boolean).map(([name, text, key, value, remark, mood]) => h("div", {},
      h("dt", {}, name),
      h("dd", { "data-key": key, "data-value": isKnown(value) ? value : undefined, class: mood },
        text, remark && h("small", {}, remark)))));
  }
  function table(heads, rows, empty) {
    if (rows.length === 0) return h("p", { class: "soft" }, empty);
    const cellClass = (head) => head.startsWith("#") ? "number" : head.startsWith("/") ? "path" : undefined;
    return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "table" }, h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: cellClass(head) === "number" ? "number" : undefined }, head.replace(/^[#/]/, ""))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: cellClass(heads[at]) }, cell)))))));
  }
  function fill(name, used, total, key) {
    if (!(total > 0)) return null;
    const part = 100 * used / total;
    return h("div", { class: "fill" },
      h("span", {}, h("b", { class: "soft" }, name),
        h("span", { "data-key": key, "data-value": used, "data-total": total }, bytes(used) + " of " + bytes(total) + " (" + percent(used, total) + ")")),
      h("span", { class: part >= 95 ? "bar full" : "bar" }, h("i", { "width%": part.toFixed(1) })));
  }

  // A chart of one or two fields over time.
  function chart(title, fields, format, points = samples, clock = timeOfDay) {
    const most = Math.max(0, ...points.flatMap((point) => fields.map(([, field]) => point[field] || 0)));
    const scale = most > 0 ? most : 1;
    const begin = points.length ? points[0].at_ms : 0;
    const time = points.length > 1 ? points[points.length - 1].at_ms - begin : 1;
    const lines = fields.map(([, field], at) => {
      let path = "", isOpen = false;
      for (const point of points) {
        if (!isKnown(point[field])) { isOpen = false; continue; }
        const x = (600 * (point.at_ms - begin) / time).toFixed(1), y = (118 - 114 * point[field] / scale).toFixed(1);
        path += (isOpen ? "L" : "M") + x + " " + y;
        isOpen = true;
      }
      return h("path", { d: path || "M0 0", class: at ? "two" : "one" });
    });
    const now = points.length ? points[points.length - 1] : {};
    const words = fields.map(([name, field]) => name + " " + format(now[field]));
    return panel(title,
      h("p", { class: "legend" }, words.map((text, at) => h("b", { class: at ? "two" : "one" }, text))),
      h("svg", { class: "chart", viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img",
        "aria-label": title + ": now " + words.join(", ") + "; most " + format(most) },
        h("line", { x1: 0, y1: 4, x2: 600, y2: 4 }), h("line", { x1: 0, y1: 118, x2: 600, y2: 118 }), lines),
      h("p", { class: "axis" }, h("span", {}, points.length ? clock(begin) : ""),
        h("span", {}, "top line: " + format(most)), h("span", {}, points.length ? clock(begin + time) : "")));
  }

  function finding(one) {
    return h("article", { class: one.severity },
      h("h3", {}, one.severity + ": " + one.trigger), h("p", {}, one.evidence),
      one.change && h("p", {}, "→ " + one.change + (isKnown(one.saves_seconds) ? " Saves about " + span(one.saves_seconds) + "." : "")),
      one.files.length > 0 && h("p", { class: "soft" }, one.files.map((path) => [h("code", {}, path), " "])));
  }
  const jobLink = (name) => h("a", { href: "#jobs/" + encodeURIComponent(name) }, jobName(name));

  function jobRows(jobs) {
    return jobs.map((job) => [
      jobLink(job.job), job.running > 0 ? count(job.running) : "ended", count(job.processes),
      state.is_counted ? perSecond(job.operations_per_second) : "–",
      state.is_counted ? rate(job.read_bytes_per_second) : "–",
      state.is_counted ? rate(job.written_bytes_per_second) : "–",
      bytes(job.bytes_read), bytes(job.bytes_written)]);
  }
  const JOB_HEADS = ["job", "#running", "#processes", "#operations", "#read", "#written", "#read in all", "#written in all"];

  // ---- sections

  function undrained() {
    const one = state.undrained;
    if (!one) return null;
    const age = one.bytes === 0 && one.files_and_names === 0 ? "nothing waits"
      : isKnown(one.age_seconds_max) ? "oldest at most " + span(one.age_seconds_max) + " old" : "age not known";
    const eta = one.bytes === 0 ? "" : isKnown(one.eta_seconds) ? ", done in about " + span(one.eta_seconds) + " at " + rate(one.bytes_per_second) : ", nothing is written now";
    const number = one.files_and_names > 0 ? count(one.files_and_names) + " files and names, " : "";
    return ["not in the backing store", bytes(one.bytes), "bytes_dirty", one.bytes, number + age + eta];
  }

  function overview() {
    const { status, sums, totals = {}, times } = state;
    const now = (field) => state.is_counted ? totals[field] : null;
    const waits = sums.write_waits > 0 ? span(sums.write_wait_us / sums.write_waits / 1e6) + " each on average" : "";
    const lost = (status.writeback ? status.writeback.failed : 0);
    return [
      facts([
        ["reading", rate(now("read_bytes_per_second")), "read", null],
        ["writing", rate(now("written_bytes_per_second")), "written", null],
        ["operations", perSecond(now("operations_per_second")), "operations", null],
        times && times.call_nanos > 0 && ["small transfer", nanos(times.call_nanos), "call_nanos", null, "time, median of files"],
        times && times.name_nanos > 0 && ["operation on a name", nanos(times.name_nanos), "name_nanos", null, "time, median of processes"],
        ["files", count(Math.max(0, sums.files - 1)), "files", sums.files],
        ["programs attached", count(sums.sessions), "sessions", sums.sessions],
        ["writers waiting", count(sums.writers_waiting), "writers_waiting", sums.writers_waiting, waits, sums.writers_waiting > 0 && "warn"],
        undrained(),
        status.writeback && ["not written back, failed", count(lost), "failed", lost, "", lost > 0 && "high"],
        ["damaged pages", count(sums.pages_damaged), "pages_damaged", sums.pages_damaged, "", sums.pages_damaged > 0 && "high"],
      ]),
      state.jobs_failure && h("p", { class: "panel warn" }, "Reading, writing, operations and jobs are not known: " + state.jobs_failure),
      grid(
        panel("Fill by tier",
          fill("memory", sums.memory_total - sums.memory_free, sums.memory_total, "memory_used"),
          fill("SSD", sums.ssd_total - sums.ssd_free, sums.ssd_total, "ssd_used"),
          sums.bytes_spilled_out > 0 && h("p", {}, bytes(sums.bytes_spilled_out) + " in the memory of other nodes"),
          sums.bytes_pinned > 0 && h("p", {}, bytes(sums.bytes_pinned) + " pinned in memory")),
        chart("Bytes of programs", [["read", "read_bytes_per_second"], ["written", "written_bytes_per_second"]], rate),
        chart("Operations of programs", [["operations", "operations_per_second"]], perSecond),
        chart("Space in use", [["memory", "memory_used"], ["SSD", "ssd_used"]], bytes)),
      panel("Busiest jobs", table(JOB_HEADS, jobRows((state.jobs || []).slice(0, 10)), "No job has used the instance."),
        state.jobs_total > 10 && h("p", {}, h("a", { href: "#jobs" }, "all " + plural(state.jobs_total, "job")))),
      grid(panel("Advice", adviceList()), panel("Mean time of operations", operationTimes())),
    ];
  }

  // Of the jobs whose advice is shown, since each began.
  function operationTimes() {
    const jobs = advice ? advice.jobs.filter((job) => job.classes) : [];
    const rows = jobs.flatMap((job) => job.classes.filter((one) => isKnown(one.mean_nanos))
      .map((one) => [jobLink(job.job), one.name, count(one.number), nanos(one.mean_nanos)]));
    return table(["job", "operation", "#number", "#mean time"], rows, "Not measured yet: one of 64 small operations is timed.");
  }

  function adviceList() {
    if (!advice) return h("p", { class: "soft" }, "Waiting for the figures of jobs.");
    const parts = advice.jobs.map((job) => {
      if (job.failure) return h("p", { class: "warn" }, "job " + jobName(job.job) + ": " + job.failure);
      if (job.busy) return h("p", { class: "soft" }, "job " + jobName(job.job) + ": the daemons are being asked");
      const all = job.findings.filter((one) => one.severity === "high" || one.severity === "warn");
      return [h("h3", {}, "job ", jobLink(job.job)), all.length ? all.slice(0, 4).map(finding) : h("p", { class: "soft" }, "Nothing to change.")];
    });
    return parts.length ? parts : h("p", { class: "soft" }, "No job has used the instance.");
  }

  function nodes() {
    const rates = new Map((state.daemon_rates || []).map((one) => [one.index, one]));
    const rows = state.status.daemons.map((one) => {
      const s = one.state, now = rates.get(one.index);
      const word = one.alive === null ? "unreachable" : !one.alive ? "dead" : s ? "alive" : "no answer";
      const cell = (value, format) => s ? format(value) : "–";
      return [String(one.index), one.host || "here", h("span", { class: word === "alive" ? "good" : "high" }, word),
        now && s ? perSecond(now.requests_per_second) : "–",
        h("span", { "data-key": "daemon" + one.index + ".memory_free", "data-value": s ? s.memory_free : undefined }, s ? bytes(s.memory_total - s.memory_free) + " of " + bytes(s.memory_total) : "–"),
        s && s.ssd_total > 0 ? bytes(s.ssd_total - s.ssd_free) + " of " + bytes(s.ssd_total) : "–",
        h("span", { "data-key": "daemon" + one.index + ".files", "data-value": s ? s.files : undefined }, cell(s && s.files, count)),
        cell(s && s.writers_waiting, count), cell(s && s.qos_waiting, count), s ? bytes(s.rss) : "–", s ? span(s.uptime_s) : "–"];
    });
    const shown = state.status.daemons.length;
    return [
      panel("Over time", h("p", {}, h("label", {}, "figure ", h("select", { onchange: (event) => { figure = event.target.value; heat = null; askHeat(); } },
        state.heat_maps.map((word) => h("option", { value: word, selected: word === figure }, word))))), heatMap()),
      panel("Daemons",
        table(["#daemon", "host", "state", "#requests", "#memory", "#SSD", "#files", "#writers waiting", "#held back", "#resident", "#up"], rows, "No daemon."),
        shown < state.daemons_total && h("p", { class: "soft" }, "Shown are " + shown + " of " + plural(state.daemons_total, "daemon") + ": those that do not answer, then the first."),
        state.unreachable.map((text) => h("p", { class: "high" }, text))),
      state.status.mounts.length > 0 && panel("Mounts of this host", table(["/at", "state", "visible to", "#process"],
        state.status.mounts.map((one) => [one.at, one.state, one.visible, String(one.pid)]), "")),
    ];
  }

  function heatMap() {
    if (!heat) return h("p", { class: "soft" }, "Waiting for figures.");
    const format = UNITS[heat.unit];
    if (heat.rows.length === 0) return h("p", { class: "soft" }, "No figures yet.");
    return [
      h("div", { class: "heat" }, heat.rows.map((row) => [
        h("span", { title: row.name }, row.name),
        h("canvas", { width: Math.max(1, row.cells.length), height: 1, role: "img", draw: drawRow(row.cells),
          "aria-label": row.name + ": " + heat.figure + ", now " + (isKnown(row.last) ? format(row.last) : "unknown") }),
        h("span", { class: "number" }, isKnown(row.last) ? format(row.last) : "–")])),
      h("p", { class: "axis" }, h("span", {}, clock(heat.begin_ms)), h("span", {}, "full colour: " + format(heat.most) + "; red: no answer"), h("span", {}, clock(heat.end_ms))),
      heat.rows.length < heat.rows_total && h("p", { class: "soft" }, "Shown are the " + heat.rows.length + " of " + heat.rows_total + " " + heat.of + " with the most."),
    ];
  }

  function drawRow(cells) {
    return (canvas) => {
      const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      const color = style.getPropertyValue("--heat").trim(), high = style.getPropertyValue("--high").trim();
      context.clearRect(0, 0, canvas.width, 1);
      for (let x = 0; x < cells.length; x++) {
        const letter = cells[x];
        if (letter === "." || letter === "a") continue;
        context.fillStyle = letter === "x" ? high : `rgb(${color} / ${(cells.charCodeAt(x) - 97) / 15})`;
        context.fillRect(x, 0, 1, 1);
      }
    };
  }

  function jobs(name) {
    if (name !== null) return oneJob(name);
    return [
      panel("Jobs", table(JOB_HEADS, jobRows(state.jobs || []), "No job has used the instance."),
        state.jobs && state.jobs.length < state.jobs_total && h("p", { class: "soft" }, "Shown are the busiest " + state.jobs.length + " of " + count(state.jobs_total) + "."),
        state.jobs_forgotten > 0 && h("p", { class: "soft" }, plural(state.jobs_forgotten, "older job") + " are not remembered."),
        state.jobs_failure && h("p", { class: "warn" }, state.jobs_failure)),
      state.sums.qos_rules > 0 && panel("Shares and limits", facts([
        ["rules", count(state.sums.qos_rules), "qos_rules", state.sums.qos_rules],
        ["requests held back now", count(state.sums.qos_waiting), "qos_waiting", state.sums.qos_waiting],
        ["requests by their share", perSecond(state.sum_rates.qos_requests), null, null],
        ["data by their share", rate(state.sum_rates.qos_bytes), null, null],
        ["jobs below 80 % of their share", count(state.sums.qos_jobs_short), "qos_jobs_short", state.sums.qos_jobs_short],
        ["time held back, all jobs", span(state.sums.qos_throttled_us / 1e6), "qos_throttled_us", state.sums.qos_throttled_us],
      ]),
        state.sums.qos_jobs_short > 0 && h("p", { class: "warn" }, "Jobs wait and get less than 80 % of their share: others have min=, or they ask too late. 'forebay qos show' on their host names them.")),
    ];
  }

  function note(job) {
    if (!job) return h("p", { class: "soft" }, "Waiting for the figures of the job.");
    if (job.failure) return h("p", { class: "warn" }, "job " + jobName(job.job) + ": " + job.failure);
    if (job.busy) return h("p", { class: "soft" }, "The daemons are being asked.");
    return null;
  }

  function oneJob(name) {
    const job = details && details.job === name ? details : null;
    const back = h("p", {}, h("a", { href: "#jobs" }, "all jobs"));
    if (note(job)) return [back, panel("Job " + jobName(name), note(job))];
    const pattern = (one) => one && one.pattern ? one.pattern : "none";
    return [
      back,
      panel("Job " + jobName(name), h("p", {}, h("code", {}, job.command)),
        job.is_sampled && h("p", { class: "soft" }, "Sampled: times, and the order of transfers, are estimates from samples; numbers and bytes are exact."),
        facts([
          ["state", job.is_complete ? "ended" : "running"], ["time", span(job.seconds)], ["began", clock(job.begin_ms)],
          ["hosts", count(job.hosts)], ["ranks", count(job.ranks_total), null, null, "processes one after another are one"], ["files", count(job.files_total)],
          ["read", bytes(job.read), "job.read", job.read], ["written", bytes(job.written), "job.written", job.written],
          ["pattern of reads", pattern(job.read_pattern)], ["pattern of writes", pattern(job.write_pattern)]])),
      panel("Advice", job.findings.length ? job.findings.map(finding) : h("p", { class: "soft" }, "None.")),
      panel("Operations", table(["class", "#number", "#failed", "#no such file", "#mean time"],
        job.classes.map((one) => [one.name, count(one.number), count(one.failures), count(one.absent), nanos(one.mean_nanos)]), "None.")),
      panel("Ranks", table(["#rank", "program", "host", "#operations", "#read", "#written"],
        job.ranks.map((one) => [String(one.rank), one.program, one.host || "", count(one.operations), bytes(one.read), bytes(one.written)]), "None."),
        job.ranks.length < job.ranks_total && h("p", { class: "soft" }, "Shown are the " + job.ranks.length + " of " + plural(job.ranks_total, "rank") + " with the most bytes.")),
      panel("Files", fileTable(job)),
    ];
  }

  function fileTable(job) {
    return [table(["/path", "#read", "#written", "#size", "#transfers", "#processes"],
      job.files.map((one) => [one.path, bytes(one.read), bytes(one.written), bytes(one.size), count(one.transfers), count(one.processes)]), "None."),
    job.files.length < job.files_total && h("p", { class: "soft" }, "Shown are the " + job.files.length + " of " + plural(job.files_total, "file") + " with the most bytes.")];
  }

  function files() {
    const names = (state.jobs || []).map((job) => job.job);
    const name = shownJob();
    if (name === null) return panel("Files and directories", h("p", { class: "soft" }, "No job has used the instance. Files are counted by the jobs that use them."));
    const job = details && details.job === name ? details : null;
    const choice = h("p", {}, h("label", {}, "job ", h("select", { onchange: (event) => { filesJob = event.target.value; askDetails(); } },
      names.map((one) => h("option", { value: one, selected: one === name }, jobName(one))))));
    if (note(job)) return panel("Files and directories", choice, note(job));
    const group = (rows) => rows.map((one) => [one.name, count(one.files), bytes(one.read), bytes(one.written), count(one.transfers)]);
    return [
      panel("Files and directories", choice, h("p", { class: "soft" }, "Files that this job used, as it counted them.")),
      panel("Files with the most bytes", fileTable(job)),
      grid(
        panel("Directories", table(["/directory", "#files", "#read", "#written", "#transfers"], group(job.directories), "None.")),
        panel("Endings of names", table(["ending", "#files", "#read", "#written", "#transfers"], group(job.endings), "None."))),
    ];
  }

  function movement() {
    const { sums, sum_rates: rates, status } = state;
    const w = status.writeback;
    const row = (name, total, now, remark) => [name, bytes(total), rate(now), remark];
    return [
      panel("Between tiers", table(["movement", "#in all", "#now", "meaning"], [
        row("allocated", sums.bytes_allocated, rates.bytes_allocated, "space given to writers"),
        row("overflowed", sums.bytes_overflowed, rates.bytes_overflowed, "of it, for writers that found memory full"),
        row("demoted", sums.bytes_demoted, rates.bytes_demoted, "from memory to the SSD"),
        row("used again", sums.bytes_refaulted, rates.bytes_refaulted, "demoted data that programs asked for"),
        row("promoted", sums.bytes_promoted, rates.bytes_promoted, "from the SSD to memory"),
        row("evicted", sums.bytes_evicted, rates.bytes_evicted, "clean data dropped; the backing store has it"),
        row("memory released", sums.memory_released, rates.memory_released, "back to the system"),
      ], ""), h("p", { class: "soft" }, count(sums.moves_cancelled) + " movements were cancelled by an access.")),
      panel("Writers that waited for space", facts([
        ["waiting now", count(sums.writers_waiting), "writers_waiting", sums.writers_waiting],
        ["have waited", count(sums.write_waits), "write_waits", sums.write_waits],
        ["mean wait", sums.write_waits > 0 ? span(sums.write_wait_us / sums.write_waits / 1e6) : "–"],
        ["longest wait", span(Math.max(0, ...status.daemons.map((one) => one.state ? one.state.write_wait_us_max : 0)) / 1e6)],
      ])),
      w && panel("Writeback to the backing store", facts([
        ["files and names that wait", count(w.dirty), "dirty", w.dirty],
        undrained(),
        ["written back", bytes(w.bytes_written), "bytes_written", w.bytes_written, rate(state.writeback_rates.bytes_written) + " now"],
        ["open or not idle yet", count(w.waiting), "waiting", w.waiting],
        ["only at the end", count(w.deferred), "deferred", w.deferred],
        ["failed", count(w.failed), "failed", w.failed, "", w.failed > 0 && "high"],
        ["in conflict", count(w.conflicts), "conflicts", w.conflicts, "", w.conflicts > 0 && "warn"],
      ]), w.error && h("p", { class: "high" }, w.error),
      w.failures.concat(w.conflicted).slice(0, 20).map(([path, why]) => h("p", {}, h("code", {}, path), ": " + why))),
      w && chart("Not in the backing store", [["bytes", "dirty_bytes"]], bytes),
      sums.profile_listed + sums.profile_recorded > 0 && panel("Access profile", facts([
        ["files recorded", count(sums.profile_recorded), "profile_recorded", sums.profile_recorded],
        ["listed from the last run", count(sums.profile_listed), "profile_listed", sums.profile_listed],
        ["of them read", count(sums.profile_hits), "profile_hits", sums.profile_hits],
        ["others read", count(sums.profile_misses), "profile_misses", sums.profile_misses]])),
    ];
  }

  function placement() {
    const { status } = state, s = status.settings;
    const most = Math.max(1, ...status.daemons.map((one) => one.state ? one.state.memory_total - one.state.memory_free + one.state.ssd_total - one.state.ssd_free : 0));
    return [
      panel("Layout of new files", facts([
        ["stripe size", bytes(s.stripe_size), "stripe_size", s.stripe_size], ["spread", String(s.spread)],
        ["placement", String(s.placement)], ["programs see it at", String(s.at)]])),
      panel("Data by target", table(["#target", "host", "#in use", "share", "#files", "#sessions", "#requests"],
        status.daemons.filter((one) => one.state).map((one) => {
          const used = one.state.memory_total - one.state.memory_free + one.state.ssd_total - one.state.ssd_free;
          const now = (state.daemon_rates || []).find((it) => it.index === one.index);
          return [String(one.index), one.host || "here", bytes(used), h("span", { class: "bar" }, h("i", { "width%": (100 * used / most).toFixed(1) })),
            count(one.state.files), count(one.state.sessions), now ? perSecond(now.requests_per_second) : "–"];
        }), "No target answers.")),
      panel("Slow targets of pools", table(["pool", "#target", "#its rate", "#rate of the others"],
        status.slow_targets.map((one) => [one.pool, String(one.target), rate(one.bytes_per_second), rate(one.peers_bytes_per_second)]),
        "None was found slow.")),
    ];
  }

  // The rate at which copies are made anew, and when they are whole.
  function copying(copies) {
    if (copies.bytes_unfilled === 0) return "";
    if (!isKnown(copies.eta_seconds)) return "nothing is copied now";
    return rate(copies.bytes_per_second) + ", done in about " + span(copies.eta_seconds);
  }

  function damage() {
    const { status, sums, sum_rates: rates } = state;
    const dead = status.daemons.filter((one) => one.alive !== true || !one.state);
    return [
      panel("Daemons that do not answer", table(["#daemon", "host", "state", "why"],
        dead.map((one) => [String(one.index), one.host || "here", one.alive === null ? "unreachable" : one.alive ? "no answer" : "dead", one.ended || ""]),
        "All answer."),
        dead.some((one) => one.alive === false) && h("p", {}, h("code", {}, "forebay start " + state.name), " restarts dead daemons, with everything that they had acknowledged.")),
      panel("Data", facts([
        ["damaged pages on SSDs", count(sums.pages_damaged), "pages_damaged", sums.pages_damaged, "", sums.pages_damaged > 0 && "high"],
        ["checked in the background", bytes(sums.bytes_scrubbed), "bytes_scrubbed", sums.bytes_scrubbed, rate(rates.bytes_scrubbed) + " now"],
        ["logs without space", count(sums.log_full), "log_full", sums.log_full, "", sums.log_full > 0 && "high"],
        ["length of the logs", bytes(sums.log_bytes), "log_bytes", sums.log_bytes]]),
      sums.pages_damaged > 0 && h("p", {}, h("code", {}, "forebay check " + state.name), " lists each file of which something is lost.")),
      status.copies && panel("Copies of file data", facts([
        ["units with too few copies", count(status.copies.units_degraded), "units_degraded", status.copies.units_degraded, "", status.copies.units_degraded > 0 && "high"],
        ["units with all copies down", count(status.copies.units_lost), "units_lost", status.copies.units_lost, "", status.copies.units_lost > 0 && "high"],
        ["units that lost all copies", count(status.copies.units_gone), "units_gone", status.copies.units_gone, "", status.copies.units_gone > 0 && "high"],
        ["to be copied", bytes(status.copies.bytes_unfilled), "unit_bytes_unfilled", status.copies.bytes_unfilled, copying(status.copies)],
        ["copied anew", bytes(status.copies.bytes_filled), "unit_bytes_filled", status.copies.bytes_filled],
        ["ranges repaired from another copy", count(status.copies.repairs), "unit_repairs", status.copies.repairs]])),
      panel("Connections between daemons", facts([
        ["ended: changed on the way", count(sums.wire_tampered), "wire_tampered", sums.wire_tampered, "", sums.wire_tampered > 0 && "high"],
        ["ended: a record did not arrive", count(sums.wire_incomplete), "wire_incomplete", sums.wire_incomplete],
        ["refused: no proof of the secret", count(sums.wire_refused), "wire_refused", sums.wire_refused]])),
    ];
  }

  function events() {
    return panel("Events", h("p", { class: "soft" }, "Changes that this dashboard saw since it began, the newest first; at most 200."),
      table(["time", "kind", "/event"], state.events.map((one) => [clock(one.at_ms), h("span", { class: one.kind === "info" ? "soft" : one.kind }, one.kind), one.text]), "Nothing has changed yet."));
  }

  const SPANS = [[60, "hour"], [1440, "day"], [10080, "week"], [43200, "30 days"]];
  function history() {
    const choice = h("p", {}, h("label", {}, "the last ", h("select", { onchange: (event) => { pastMinutes = Number(event.target.value); past = null; askPast(); } },
      SPANS.map(([minutes, name]) => h("option", { value: minutes, selected: minutes === pastMinutes }, name)))));
    if (!past) return panel("History", choice, h("p", { class: "soft" }, "The history is being read."));
    if (past.failure) return panel("History", choice, h("p", { class: "warn" }, past.failure));
    const remark = past.minutes_each > 1 ? ", means of " + past.minutes_each + " minutes" : "";
    const over = (title, fields, format) => chart(title, fields, format, past.load, date);
    const asked = (run) => run.advice.filter((one) => one.severity === "high" || one.severity === "warn");
    return [
      panel("History", choice, h("p", { class: "soft" }, plural(past.load.length, "point") + remark + ", in " + past.path + ". Minutes appear when they are over.")),
      past.load.length > 0 && grid(
        over("Bytes of programs", [["read", "read_bytes_per_second"], ["written", "written_bytes_per_second"]], rate),
        over("Operations of programs", [["operations", "operations_per_second"]], perSecond),
        over("Space in use", [["memory", "memory_used"], ["SSD", "ssd_used"]], bytes),
        over("Not in the backing store", [["bytes", "dirty_bytes"]], bytes)),
      panel("Jobs", table(["job", "began", "#time", "state", "#processes", "#read", "#written", "/advice"],
        past.runs.map((run) => [jobName(run.job), date(run.begin_ms), span(run.seconds), run.is_complete ? "ended" : "not ended",
          count(run.ranks), bytes(run.bytes_read), bytes(run.bytes_written),
          asked(run).map((one) => one.trigger).join(", ") || "–"]), "No job has ended."),
        h("p", { class: "soft" }, h("code", {}, "forebay report JOB"), " shows all that is known of one.")),
      panel("Events", table(["time", "kind", "/event"],
        past.events.map((one) => [date(one.at_ms), h("span", { class: one.kind === "info" ? "soft" : one.kind }, one.kind), one.text]), "None.")),
    ];
  }

  const SECTIONS = { overview, nodes, jobs, files, movement, placement, damage, events, history };

  // ---- the page

  // The section that the address names, and the job in it.
  function place() {
    const [word, ...rest] = location.hash.slice(1).split("/");
    let name = rest.length ? rest.join("/") : null;
    try { name = name && decodeURIComponent(name); } catch { /* It is the name of no job. */ }
    return [Object.hasOwn(SECTIONS, word) ? word : "overview", name];
  }

  // The job of which details are shown; null: none.
  function shownJob() {
    const [section, name] = place();
    if (section === "jobs") return name;
    if (section !== "files" || !state || !state.jobs || state.jobs.length === 0) return null;
    const isListed = state.jobs.some((job) => job.job === filesJob);
    return isListed ? filesJob : state.jobs[0].job;
  }

  function banner() {
    if (refusal) return refusal;
    if (silentSince) return "The dashboard does not answer since " + clock(silentSince) + ": is 'forebay dashboard' still running? The figures are older.";
    if (state && state.failure) return (state.at_ms ? "The figures are of " + clock(state.at_ms) + ": " : "") + state.failure;
    return "";
  }

  // An error of this page is shown, too: old figures must not look like new ones.
  function draw() {
    try { drawAll(); } catch (error) {
      refusal = "This page has an error: " + error.message;
      console.error(error);
      showBanner();
    }
  }

  function showBanner() {
    const alert = document.getElementById("banner"), text = banner();
    alert.hidden = text === "";
    if (alert.textContent !== text) alert.textContent = text;
  }

  function drawAll() {
    const [section, name] = place();
    document.querySelectorAll("nav a").forEach((link) => {
      if (link.hash === "#" + section) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    });
    showBanner();
    if (!state || !state.status) return;
    document.title = state.name + " – Forebay";
    document.getElementById("name").textContent = state.name;
    const silent = state.totals ? state.totals.silent : state.status.daemons.filter((one) => !one.state).length;
    const isStale = silentSince || state.failure || refusal;
    const health = document.getElementById("health");
    const word = isStale ? "state unknown" : state.status.healthy && !silent ? "healthy" : silent + " of " + plural(state.daemons_total, "daemon") + " without an answer";
    if (health.textContent !== word) health.textContent = word;
    health.className = word === "healthy" ? "good" : "high";
    health.dataset.healthy = state.status.healthy;
    document.getElementById("clock").textContent = plural(state.daemons_total, "daemon") + " · " + (isPaused ? "paused at " : "") + clock(state.at_ms);
    const made = h("div", { id: "section" }, SECTIONS[section](name));
    patch(main, made);
    main.querySelectorAll("canvas").forEach((canvas) => canvas.draw && canvas.draw(canvas));
  }

  async function ask(path, values) {
    const query = new URLSearchParams({ ...values, token });
    const answer = await fetch("api/" + path + "?" + query, { signal: AbortSignal.timeout(ASK_TIME_MS) });
    if (!answer.ok) { const why = new Error((await answer.text()).trim()); why.isRefusal = true; throw why; }
    return answer.json();
  }

  async function askState() {
    try {
      const answer = await ask("state", { after: last });
      // A dashboard that was started again counts from the beginning.
      if (answer.last < last) samples = [];
      last = answer.last;
      for (const [, at_ms, ...figures] of answer.points) {
        const point = { at_ms };
        answer.point_fields.forEach((field, at) => { point[field] = figures[at]; });
        samples.push(point);
      }
      samples = samples.slice(-POINTS_MAX);
      state = answer;
      silentSince = refusal = null;
    } catch (error) {
      if (error.isRefusal) refusal = error.message; else silentSince ||= Date.now();
    }
  }

  // What only some sections need. A failure is seen by askState, too.
  async function askHeat() {
    try { heat = await ask("heat", { figure }); } catch { return; }
    draw();
  }
  async function askDetails() {
    const job = shownJob();
    if (job === null) return;
    try {
      const answer = await ask("job", { job });
      // While the daemons are asked for another page, the old figures stay.
      if (!answer.busy || !details || details.job !== job) details = answer;
    } catch { return; }
    draw();
  }
  async function askPast() {
    try { past = await ask("history", { minutes: pastMinutes }); } catch { return; }
    draw();
  }
  async function askAdvice() {
    try {
      const answer = await ask("advice", {});
      if (!advice || !answer.jobs.some((job) => job.busy)) advice = answer;
    } catch { return; }
    draw();
  }
  function askMore() {
    const [section] = place();
    if (section === "nodes") return askHeat();
    if (section === "history") return askPast();
    return section === "overview" ? askAdvice() : askDetails();
  }

  async function live() {
    let moreAt = 0;
    for (;;) {
      const begin = Date.now();
      if (!isPaused && !document.hidden) {
        await askState();
        draw();
        const every = place()[0] === "history" ? PAST_MS : DETAILS_MS;
        const isDue = place()[0] === "nodes" || begin - moreAt >= every;
        if (isDue && !silentSince && !refusal) { moreAt = begin; await askMore(); }
      }
      const interval = state ? Math.max(500, state.interval_ms) : 1000;
      await new Promise((resolve) => setTimeout(resolve, Math.max(100, interval - (Date.now() - begin))));
    }
  }

  const pause = document.getElementById("pause");
  pause.onclick = () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
    draw();
  };
  addEventListener("hashchange", () => {
    // Figures from the last visit to a section would look like new ones.
    details = heat = past = null;
    draw();
    askMore();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  live();
})();
