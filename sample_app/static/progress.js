// Shows the progress of a run, and reloads the page at its end.
const { run, what } = document.currentScript.dataset;
const bar = document.getElementById("progress");
const text = document.getElementById("progress-text");

async function poll() {
  try {
    const state = await (await fetch(run, { cache: "no-store" })).json();
    if (state.over) {
      location.reload();
      return;
    }
    if (state.done) {
      bar.max = state.of;
      bar.value = state.done;
      text.textContent = `${state.done} of ${state.of} ${what}.`;
    }
  } catch {
    // The site may be restarting. Try again.
  }
  setTimeout(poll, 400);
}

poll();
