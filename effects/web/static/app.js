// Everything works without this file. It adds: the viewer's own zone, live regions, and keys.
"use strict";
(() => {
  const POLL_MS = 5000, POLL_CALM_MS = 20000, POLL_MAX_MS = 60000, JITTER = 0.2, PREFIX_MS = 1200;
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("effects", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const state = { paused: false, wait: POLL_MS, timer: 0, tag: "", prefix: -Infinity, row: -1, ticked: 0 };

  // -- times in the viewer's zone, UTC beside ---------------------------------------------------------------
  const two = (number) => String(number).padStart(2, "0");
  function zoned(moment) {
    const ahead = -moment.getTimezoneOffset(), whole = Math.floor(Math.abs(ahead) / 60), rest = Math.abs(ahead) % 60;
    const day = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
    const clock = `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
    return `${day} ${clock}\u00a0${ahead < 0 ? "-" : "+"}${two(whole)}${rest ? `:${two(rest)}` : ""}`;
  }
  function localise(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.valueOf()) || moment.getTimezoneOffset() === 0) continue;
      if ("ago" in time.dataset) {
        time.title = zoned(moment);
        continue;
      }
      time.title = `UTC: ${time.textContent}`;
      time.textContent = zoned(moment);
    }
  }

  // "18 min ago", as the server has it, of its own clock.
  function age(now) {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const seconds = (now - new Date(time.dateTime)) / 1000, whole = Math.floor(Math.abs(seconds));
      const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find((each) => whole >= each[0]) || [1, "s"];
      const span = `${Math.floor(whole / size)} ${unit}`;
      time.textContent = seconds < 0 ? `in ${span}` : `${span} ago`;
    }
  }

  // -- live regions -----------------------------------------------------------------------------------------
  const regions = (page = document) => [...page.querySelectorAll("[data-live][id]")];
  function busy() {
    const active = document.activeElement;
    const selection = document.getSelection();
    return document.hidden || state.paused || (selection && !selection.isCollapsed)
      || (active && active.matches("input, select, textarea, [data-live] *"))
      || document.querySelector("[data-live] details[open], main input:checked");
  }
  function tell(text) {
    const line = document.getElementById("live-state");
    if (line) line.textContent = text;
  }
  async function ask() {
    const headers = { "x-effects-live": "1", "if-none-match": state.tag };
    const answer = await fetch(location.href, { headers, credentials: "same-origin", cache: "no-store" });
    if (answer.redirected || !(answer.ok || answer.status === 304)) throw new Error(String(answer.status));
    if (answer.status === 304) {
      readAt(answer.headers.get("x-effects-read") || "");
      state.wait = Math.min(state.wait * 1.5, POLL_CALM_MS);
      return;
    }
    if (answer.status === 202) return; // it counts, and shows nothing yet
    const fresh = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
    if (busy()) return;
    swap(fresh);
    state.tag = answer.headers.get("etag") || "";
    state.wait = POLL_MS;
  }
  async function poll() {
    if (!busy()) {
      try {
        await ask();
        tell("· live");
      } catch {
        state.wait = Math.min(state.wait * 2, POLL_MAX_MS);
        tell("· stale: the dashboard does not answer");
      }
    }
    later(state.wait);
  }
  // What has not changed for long is asked for less often; a person at the window is told at once. What a form has shown
  // is not asked for: its address alone leads elsewhere.
  function later(wait) {
    clearTimeout(state.timer);
    if (document.hidden || "once" in document.body.dataset) return;
    if (regions().length) state.timer = setTimeout(poll, wait * (1 + JITTER * (Math.random() - 0.5)));
  }
  function wake() {
    const slow = state.wait > POLL_MS;
    state.wait = POLL_MS;
    if (slow) later(POLL_MS);
  }
  function readAt(text) {
    const time = document.querySelector("#read time"), end = text.indexOf(" ");
    if (!time || end < 0) return;
    time.dateTime = text.slice(0, end);
    time.textContent = text.slice(end + 1);
    localise(time.parentNode);
    age(new Date(time.dateTime));
  }
  function swap(fresh) {
    const ids = (page) => regions(page).map((region) => region.id).join();
    if (ids(document) !== ids(fresh)) replace("main", fresh); // a list has become empty, or is no longer
    for (const region of regions()) {
      const next = fresh.getElementById(region.id);
      if (next && next.innerHTML !== region.dataset.was) {
        next.dataset.was = next.innerHTML;
        replace(region.id, fresh);
      }
    }
    replace("read", fresh);
  }
  function replace(id, fresh) {
    const next = fresh.getElementById(id), shown = document.getElementById(id);
    if (!next || !shown) return;
    localise(next);
    offer(next);
    shown.replaceWith(document.adoptNode(next));
  }

  // -- keys -------------------------------------------------------------------------------------------------
  const keysOff = () => localStorage.getItem("effects-keys") === "off";
  const rows = () => [...document.querySelectorAll("tr[data-row]")];
  function rowAt() {
    const focused = rows().indexOf(document.activeElement?.closest("tr[data-row]"));
    return focused < 0 ? state.row : focused;
  }
  function move(by) {
    const all = rows();
    if (!all.length) return;
    state.row = Math.max(0, Math.min(all.length - 1, rowAt() + by));
    const link = all[state.row].querySelector("a");
    if (link) link.focus();
  }
  function tick() {
    const box = rows()[rowAt()]?.querySelector(".tick input");
    if (!box) return;
    box.checked = !box.checked;
    state.ticked = rowAt();
  }
  function tickTo() {
    const ends = [state.ticked, rowAt()];
    for (const row of rows().slice(Math.min(...ends), Math.max(...ends) + 1)) {
      const box = row.querySelector(".tick input");
      if (box) box.checked = true;
    }
    state.ticked = rowAt();
  }
  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || keysOff()) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const wanted = performance.now() - state.prefix < PREFIX_MS ? `g ${event.key}` : event.key;
    state.prefix = event.key === "g" ? performance.now() : -Infinity;
    if (wanted === "j" || wanted === "k") move(wanted === "j" ? 1 : -1);
    else if (wanted === "x") tick();
    else if (wanted === "X") tickTo();
    else if (wanted === "b") document.querySelector("#ticked button")?.focus();
    else if (wanted === ".") {
      state.paused = !state.paused;
      tell(state.paused ? "· paused" : "· live");
    } else {
      const target = document.querySelector(`[data-key="${CSS.escape(wanted).replace("\\ ", " ")}"]`);
      if (!target) return;
      event.preventDefault();
      if (target.matches("input")) target.focus();
      else target.click();
    }
  }

  // -- reasons are remembered while this window is open -----------------------------------------------------
  function remember() {
    for (const field of document.querySelectorAll("[data-remember]")) {
      const name = `effects-${field.dataset.remember}`;
      field.value ||= sessionStorage.getItem(name) || "";
      field.form.addEventListener("submit", () => sessionStorage.setItem(name, field.value));
    }
    const off = document.getElementById("keys-off");
    if (off) {
      off.checked = keysOff();
      off.addEventListener("change", () => localStorage.setItem("effects-keys", off.checked ? "off" : "on"));
    }
  }

  // -- ids are short, and can be copied ----------------------------------------------------------------------
  function offer(root) {
    for (const button of root.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  }
  async function copy(event) {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  }

  localise(document);
  offer(document);
  remember();
  document.addEventListener("click", copy);
  document.addEventListener("keydown", press);
  for (const kind of ["keydown", "pointerdown"]) document.addEventListener(kind, wake);
  document.addEventListener("visibilitychange", () => later(0));
  later(POLL_MS);
})();
