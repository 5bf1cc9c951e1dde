// Runs the two trainings one after the other, and draws what they tell.

const RUNS = ["plain", "planned"];
const WIDTH = 600;
const HEIGHT = 200;
const steps = Number(new URLSearchParams(location.search).get("steps") ?? 50);
const runtime = new URL(document.documentElement.dataset.runtime, location).href;
const results = Object.fromEntries(RUNS.map((run) => [run, { loss: [], heap: [] }]));

function draw(id, unit) {
  const largest = Math.max(...RUNS.flatMap((run) => results[run][id])) / unit;
  const x = (step) => (WIDTH * step) / Math.max(steps - 1, 1);
  const y = (value) => HEIGHT - (0.9 * HEIGHT * value) / unit / largest;
  const line = (run) =>
    `<polyline class="${run}" points="${results[run][id].map((value, step) => `${x(step)},${y(value)}`).join(" ")}"/>`;
  document.getElementById(id).innerHTML = `<text x="6" y="14">${largest.toFixed(2)}</text>${RUNS.map(line).join("")}`;
}

function show(run, { loss, heap }) {
  results[run].loss.push(loss);
  results[run].heap.push(heap);
  const cells = document.querySelectorAll(`tr.${run} td`);
  const texts = [results[run].loss.length, loss.toFixed(4), `${(heap / 2 ** 20).toFixed(1)} MiB`];
  texts.forEach((text, column) => (cells[column].textContent = text));
  draw("loss", 1);
  draw("heap", 2 ** 20);
}

function trained(folder) {
  return new Promise((resolve, reject) => {
    const worker = new Worker("worker.mjs", { type: "module" });
    worker.onerror = (event) => reject(new Error(event.message ?? `${folder} did not start`));
    worker.onmessage = ({ data }) => {
      if (data.error) reject(new Error(data.error));
      else if (data.done) resolve(worker.terminate());
      else show(folder, data);
    };
    worker.postMessage({ folder, runtime, steps });
  });
}

try {
  for (const run of RUNS) await trained(run);
} catch (error) {
  document.getElementById("error").textContent = error.message;
}
window.results = results;
document.documentElement.dataset.ready = "yes";
