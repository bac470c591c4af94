"use strict";
// Keeps the page up to date: waits at the log for news, asks for the page again, and takes over its live
// parts. The node makes the HTML, and DOMParser runs no script.

const REST_MS = 1000; // between two pages, however fast entries come
const WAIT_S = 5; // without news; then a member may still have died

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const shown = () => new Promise((resolve) => addEventListener("visibilitychange", resolve, { once: true }));

async function get(url) {
  const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(4000 * WAIT_S) });
  if (!answer.ok) throw new Error(`answer ${answer.status}`);
  return answer.text();
}

async function follow() {
  const live = document.getElementById("live");
  const say = (text, kind) => {
    if (live.textContent !== text) live.textContent = text;
    live.className = kind;
  };
  for (;;) {
    try {
      const page = new DOMParser().parseFromString(await get(location.href), "text/html");
      for (const part of page.querySelectorAll("[data-live]")) {
        const old = document.getElementById(part.id);
        for (const details of old?.querySelectorAll("details[open]") ?? []) {
          part.querySelector(`#${details.id}`)?.setAttribute("open", "");
        }
        old?.replaceWith(part);
      }
      say("live", "on");
      await sleep(REST_MS);
      if (document.hidden) await shown();
      const { farm, commit } = document.getElementById("summary").dataset;
      await get(`/v1/farms/${encodeURIComponent(farm)}/log?after=${commit}&limit=1&types=all&wait_s=${WAIT_S}`);
    } catch (error) {
      say("this node does not answer; what you see is old", "off");
      console.warn(error);
      await sleep(2 * REST_MS);
    }
  }
}

follow();
