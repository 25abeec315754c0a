// Sends a request as often as people press, at once if they like, and shows each answer, and what
// is stored.
const { state } = document.currentScript.dataset;
const form = document.getElementById("buy");
const twice = document.getElementById("twice");
const faults = document.getElementById("faults");
const set = document.getElementById("set");
const nothing = document.getElementById("nothing");
const answers = document.getElementById("answers");
const shown = document.getElementById("state");
let latest = null;
let chosen = null;

function line(text) {
  const item = document.createElement("li");
  item.textContent = text;
  answers.append(item);
  return item;
}

async function answer(response) {
  if (!response.headers.get("Content-Type")?.startsWith("application/json")) {
    return `${response.status}: ${response.statusText}`;
  }
  const { words, replayed, worker } = await response.json();
  const what = replayed ? "the stored answer again" : response.ok ? "run" : "not done";
  return `${response.status}, ${what}, worker ${worker}: ${words}`;
}

async function send() {
  const item = line("Sent …");
  const began = performance.now();
  const waiting = setTimeout(() => {
    item.textContent = "Sent. It waits: the lock of a killed worker ends within 10 s …";
  }, 2000);
  let text;
  try {
    await chosen;
    const body = new URLSearchParams(new FormData(form));
    const headers = { Accept: "application/json" };
    text = await answer(await fetch(form.action, { method: "POST", body, headers }));
  } catch {
    text = "No answer: the worker is dead, or the site cannot be reached. Send it again.";
  }
  clearTimeout(waiting);
  item.textContent = `${text} (${((performance.now() - began) / 1000).toFixed(1)} s)`;
}

async function refresh() {
  try {
    const response = await fetch(state, { cache: "no-store" });
    const found = await response.text();
    if (response.ok && found !== latest) {
      latest = found; // a link that has the focus keeps it, unless something has changed
      shown.innerHTML = found; // this site's own page, escaped there
    }
  } catch {
    // a worker may be starting again
  }
}

async function poll() {
  await refresh();
  setTimeout(poll, 700);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const times = event.submitter === twice ? 2 : 1;
  for (let sent = 0; sent < times; sent += 1) {
    send();
  }
});
// A fault is set as soon as it is chosen; what is sent waits for that.
function choose() {
  chosen = fetch(faults.action, { method: "POST", body: new URLSearchParams(new FormData(faults)) });
}

faults.addEventListener("change", choose);
nothing.addEventListener("click", () => {
  faults.elements.mood[0].checked = true;
  if (faults.elements.death) {
    faults.elements.death[0].checked = true;
  }
  choose();
});
twice.hidden = false;
nothing.hidden = false;
set.hidden = true;
poll();
