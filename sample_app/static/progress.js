// Shows the progress of a run, then reloads the page for its outcome.
const { run, what } = document.currentScript.dataset;
const bar = document.getElementById("progress");
const text = document.getElementById("progress-text");

async function poll() {
  try {
    const progress = await (await fetch(run, { cache: "no-store" })).json();
    if (progress.over) {
      location.reload();
      return;
    }
    bar.max = progress.of;
    bar.value = progress.done;
    text.textContent = progress.done
      ? `${progress.done} of ${progress.of} ${what}.`
      : `The servers are starting, ${progress.seconds} s so far.`;
  } catch {
    // The site may be restarting; poll again.
  }
  setTimeout(poll, 400);
}

poll();
