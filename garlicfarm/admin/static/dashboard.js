"use strict";
// Keeps the page up to date: when the node pushes that something has changed, asks for the page again, and takes
// over its live parts. The node makes the HTML, and DOMParser runs no script.

const KINDS = ["leader", "publisher", "members", "health", "position"];
const REST_MS = 1000; // between two pages, however fast entries come
const QUIET_MS = 5000; // without news: ages are no events

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const shown = () => new Promise((resolve) => addEventListener("visibilitychange", resolve, { once: true }));

let changed = () => {};
let source = null;

// Not while the page is hidden: it would keep one of the few connections that a browser makes to a node.
function listen() {
  source?.close();
  if (document.hidden) return;
  const { farm, commit } = document.getElementById("summary").dataset;
  const query = new URLSearchParams({ after: commit, kinds: KINDS });
  source = new EventSource(`/v1/farms/${encodeURIComponent(farm)}/events?${query}`);
  for (const kind of KINDS) source.addEventListener(kind, () => changed());
  source.addEventListener("error", (event) => {
    changed();
    // Otherwise the browser connects again, and names the last event.
    if (event.target.readyState === EventSource.CLOSED) setTimeout(listen, 2 * REST_MS);
  });
}

async function refresh() {
  const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(4 * QUIET_MS) });
  if (!answer.ok) throw new Error(`answer ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of page.querySelectorAll("[data-live]")) {
    const old = document.getElementById(part.id);
    for (const details of old?.querySelectorAll("details[open]") ?? []) {
      part.querySelector(`#${details.id}`)?.setAttribute("open", "");
    }
    old?.replaceWith(part);
  }
}

async function follow() {
  const live = document.getElementById("live");
  const say = (text, kind) => {
    if (live.textContent !== text) live.textContent = text;
    live.className = kind;
  };
  for (;;) {
    const news = new Promise((resolve) => (changed = resolve)); // from before the page is made
    try {
      await refresh();
      say("live", "on");
    } catch (error) {
      say("this node does not answer; what you see is old", "off");
      console.warn(error);
      await sleep(REST_MS);
    }
    await sleep(REST_MS);
    if (document.hidden) await shown();
    else await Promise.race([news, sleep(QUIET_MS)]);
  }
}

addEventListener("visibilitychange", listen);
listen();
follow();
