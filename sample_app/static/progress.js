// While a run is under way: shows how far it is, and the outcome when there is one.
const { run, what } = document.currentScript.dataset;
const bar = document.getElementById("progress");
const text = document.getElementById("progress-text");

async function look() {
  try {
    const told = await (await fetch(run, { cache: "no-store" })).json();
    if (told.over) {
      location.reload();
      return;
    }
    if (told.done) {
      bar.max = told.of;
      bar.value = told.done;
      text.textContent = `${told.done} of ${told.of} ${what}.`;
    }
  } catch {
    // The site may be starting again; the next look tells.
  }
  setTimeout(look, 400);
}

look();
