// Shows the jobs of the outbox, and the mails that have arrived, as they come and go.
const { jobs, mails } = document.currentScript.dataset;
const counts = document.getElementById("jobs-counts");
const redrive = document.getElementById("jobs-redrive");

function fill(id, rows, nothing) {
  const lines = rows.map((cells) => {
    const line = document.createElement("tr");
    for (const [text, style] of cells) {
      const cell = line.insertCell();
      cell.textContent = text;
      cell.className = style ?? "";
    }
    return line;
  });
  if (!lines.length) {
    const line = document.createElement("tr");
    const cell = line.insertCell();
    cell.textContent = nothing;
    cell.className = "empty";
    cell.colSpan = 5;
    lines.push(line);
  }
  document.getElementById(id).replaceChildren(...lines);
}

function state(job) {
  if (job.state !== "later") {
    return job.state;
  }
  const seconds = Math.max(Math.ceil((new Date(job.ready) - Date.now()) / 1000), 0);
  const minutes = Math.floor(seconds / 60);
  const time = minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
  return `${job.attempts ? "again" : "later"}, in ${time}`;
}

function show(status, found) {
  const { due, later, running, dead } = status;
  const words = `${due} due, ${later} later, ${running} running, ${dead} dead.`;
  if (counts.textContent !== words) {
    counts.textContent = words; // read aloud: only when something has changed
  }
  redrive.hidden = !dead;
  fill(
    "jobs-rows",
    found.map((job) => [
      [state(job), `job-state ${job.state}`],
      [job.job],
      [job.owner],
      [(job.last_error?.text ?? "").replace(/ \([^()]*:\d+\)$/, "")], // without the line of code
      [job.attempts, "number"],
    ]),
    "No job waits.",
  );
}

async function fetched(address) {
  return (await fetch(address, { cache: "no-store" })).json();
}

async function poll() {
  try {
    const { status, jobs: alive } = await fetched(jobs);
    const dead = status.dead ? (await fetched(`${jobs}?dead=yes`)).jobs : [];
    const died = new Set(dead.map((job) => job.name)); // between the two requests
    show(status, [...alive.filter((job) => !died.has(job.name)), ...dead]);
    const arrived = (await fetched(mails)).mails;
    fill(
      "mails-rows",
      arrived.map((each) => [[each.at.slice(11, 19)], [each.to], [each.subject]]),
      "None yet.",
    );
  } catch {
    counts.textContent = "The site does not answer.";
  }
  setTimeout(poll, 700);
}

poll();
