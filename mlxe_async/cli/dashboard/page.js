// Puts the newest parts of the page in their places. All HTML was escaped where it was made; nothing of it is run.
"use strict";

const SAID = {
  live: "live",
  lost: "the connection is lost; trying again",
  gone: "the page is served no more, or by another token; open the address that was printed",
  over: "the run has ended, and its page is served no more; this is its last state",
};
const connection = document.getElementById("connection");
let source = null;
let isOver = false;

// The token is in a cookie now: it need not stay in the address, the history and what is copied from there.
if (location.search) history.replaceState(null, "", location.pathname);

function say(state) {
  connection.textContent = SAID[state];
  connection.className = state;
}

function wanted() {
  return [...document.querySelectorAll("details[data-more][open]")].map((part) => part.dataset.more).join(",");
}

function isSelectedIn(place) {
  const selection = getSelection();
  return !selection.isCollapsed && place.contains(selection.anchorNode);
}

// What a reader has opened, scrolled or marked stays so.
function show(name, html) {
  const place = document.getElementById(name);
  if (!place || isSelectedIn(place)) return;
  const open = [...place.querySelectorAll("details")].map((part) => part.open);
  const scrolled = [...place.querySelectorAll(".wide")].map((part) => part.scrollLeft);
  const focusable = "a, summary, [tabindex]";
  const focused = [...place.querySelectorAll(focusable)].indexOf(document.activeElement);
  place.innerHTML = html;
  place.querySelectorAll("details").forEach((part, index) => { part.open = Boolean(open[index]); });
  place.querySelectorAll(".wide").forEach((part, index) => { part.scrollLeft = scrolled[index] || 0; });
  if (focused >= 0) place.querySelectorAll(focusable)[focused]?.focus({ preventScroll: true });
  place.closest("section[data-part]")?.classList.toggle("empty", html === "");
}

function connect() {
  if (source) source.close();
  if (isOver) return;
  const more = wanted();
  source = new EventSource(document.body.dataset.stream + (more ? `?more=${more}` : ""));
  source.addEventListener("panels", (event) => {
    for (const [name, html] of Object.entries(JSON.parse(event.data))) show(name, html);
    say("live");
  });
  source.addEventListener("over", () => {
    isOver = true;
    source.close();
    say("over");
  });
  source.onerror = () => say(source.readyState === EventSource.CLOSED ? "gone" : "lost");
}

// Of what is folded away nothing is sent.
document.addEventListener("toggle", (event) => {
  if (event.target.matches("details[data-more]")) connect();
}, true);
// Nothing is sent to a page that is not seen.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connect();
  else if (source) source.close();
});
connect();
