"use strict";

// Shows /readyz, /healthz and a few of the /metrics, every five seconds. All text
// from the hub goes in as text, never as markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const numbers = [
    ["edgehub_connections", "clients connected"],
    ["edgehub_sessions", "sessions"],
    ["edgehub_subscriptions", "subscriptions"],
    ["edgehub_messages_received_total", "messages in"],
    ["edgehub_messages_sent_total", "messages out"],
  ];

  function element(tag, text, cls) {
    const e = document.createElement(tag);
    e.textContent = text;
    if (cls) e.className = cls;
    return e;
  }

  function row(cells) {
    const tr = document.createElement("tr");
    cells.forEach(([text, cls]) => tr.append(element("td", text, cls)));
    return tr;
  }

  // samples reads the text format of Prometheus: name{label="value"} number.
  function samples(text) {
    const out = [];
    for (const line of text.split("\n")) {
      const m = /^([a-z0-9_]+)(?:\{(.*)\})? (\S+)$/i.exec(line);
      if (!m) continue;
      const labels = {};
      for (const l of (m[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/gi)) {
        labels[l[1]] = l[2].replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
      }
      out.push({ name: m[1], labels, value: Number(m[3]) });
    }
    return out;
  }

  function showHealth(ready, health) {
    const state = byId("state");
    state.className = health.state;
    state.textContent = ready.ready ? `ready, health ${health.state}` : `not ready, health ${health.state}`;
    const seen = new Set();
    byId("reasons").replaceChildren(...[...ready.reasons, ...health.reasons].flatMap((r) => {
      const key = r.what + "\0" + r.why;
      if (seen.has(key)) return [];
      seen.add(key);
      const li = element("li", `${r.what}: ${r.why}`);
      if (r.cure) li.append(element("code", r.cure));
      return [li];
    }));
  }

  function showNumbers(all) {
    const one = (name) => all.find((s) => s.name === name);
    byId("numbers").replaceChildren(...numbers.flatMap(([name, label]) => {
      const s = one(name);
      return s ? [row([[label], [s.value.toLocaleString("en"), "number"]])] : [];
    }));
    const of = (name, uplink) => all.find((s) => s.name === name && s.labels.uplink === uplink)?.value ?? 0;
    const names = all.filter((s) => s.name === "edgehub_uplink_connected").map((s) => s.labels.uplink);
    byId("uplinks-section").hidden = names.length === 0;
    byId("uplinks").replaceChildren(...names.map((u) => row([
      [u],
      [of("edgehub_uplink_connected", u) ? "yes" : "no"],
      [of("edgehub_uplink_lag_messages", u).toLocaleString("en") + " messages", "number"],
      [of("edgehub_uplink_lag_seconds", u).toLocaleString("en") + " s", "number"],
    ])));
  }

  async function refresh() {
    try {
      const get = (path) => fetch(path, { cache: "no-store", signal: AbortSignal.timeout(4000) });
      const [ready, health, metrics] = await Promise.all([get("/readyz"), get("/healthz"), get("/metrics")]);
      showHealth(await ready.json(), await health.json());
      showNumbers(samples(await metrics.text()));
    } catch {
      byId("state").className = "failed";
      byId("state").textContent = "the hub does not answer";
    }
    setTimeout(refresh, 5000);
  }
  refresh();
})();
