// Asks once a second what became of the order's jobs, until nothing will change by itself any more.
const jobs = document.getElementById("jobs");

async function refresh() {
  try {
    const answer = await fetch(jobs.dataset.url);
    if (answer.ok) jobs.innerHTML = await answer.text();
  } catch {
    // The server is restarting; the next look will do.
  }
  schedule();
}

function schedule() {
  if (!jobs.querySelector("[data-settled]")) setTimeout(refresh, 1000);
}

schedule();
