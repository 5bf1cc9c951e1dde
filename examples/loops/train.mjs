// The loop in JavaScript, for node and for browsers.
import { batch, tensors, zeros } from "./safetensors.mjs";

// WebGPU where there is one, else what the build of onnxruntime has: WebAssembly in browsers, the CPU in node.
const PROVIDERS = globalThis.navigator?.gpu ? { executionProviders: ["webgpu", "wasm"] } : {};

async function checked(buffer, { name, sha256 }) {
  const bytes = Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", buffer)));
  if (bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("") !== sha256)
    throw new Error(`${name} is not the file that manifest.json describes`);
  return buffer;
}

// Yields the loss of each step. `ort` is onnxruntime-node or any build of onnxruntime-web, `read(name)` gets a file of
// the directory as an ArrayBuffer, and `batches` are tensors that hold one batch after the other.
export async function* train(ort, read, batches, steps, options = PROVIDERS) {
  const manifest = JSON.parse(new TextDecoder().decode(await read("manifest.json")));
  const open = async (kind) => checked(await read(manifest.files[kind].name), manifest.files[kind]);
  const sessions = [];
  for (const kind of ["training", "update"]) sessions.push(await ort.InferenceSession.create(await open(kind), options));
  const values = tensors(ort, await open("checkpoint"));
  for (const state of manifest.states) values[state.name] = zeros(ort, state);
  const data = tensors(ort, batches);
  for (let step = 0; step < steps; step++) {
    Object.assign(values, batch(ort, data, step));
    for (const session of sessions) {
      const made = await session.run(Object.fromEntries(session.inputNames.map((name) => [name, values[name]])));
      for (const name of session.outputNames) values[manifest.updates[name] ?? name] = made[name];
    }
    yield values[manifest.loss].data[0];
  }
}
