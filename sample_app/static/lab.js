// While a run is under way: shows how far it is, and the outcome when there is one.
const run = document.currentScript.dataset.run;
const bar = document.getElementById("progress");
const text = document.getElementById("progress-text");

async function look() {
  try {
    const told = await (await fetch(run, { cache: "no-store" })).json();
    if (told.over) {
      location.reload();
      return;
    }
    bar.value = told.done;
    if (told.done) {
      text.textContent = `${told.done} of ${told.of} requests are answered.`;
    }
  } catch {
    // The site may be starting again; the next look tells.
  }
  setTimeout(look, 400);
}

look();
