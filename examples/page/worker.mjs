// Trains with the files of one directory and tells loss and memory after each step.
import { train } from "./train.mjs";

// onnxruntime makes one memory and lets it grow, never shrink: its size is the most that was needed so far.
const memories = [];
WebAssembly.Memory = class extends WebAssembly.Memory {
  constructor(descriptor) {
    super(descriptor);
    memories.push(this);
  }
};

async function read(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

onmessage = async ({ data: { folder, runtime, steps } }) => {
  try {
    const ort = await import(`${runtime}ort.wasm.min.mjs`);
    ort.env.wasm.wasmPaths = runtime;
    ort.env.wasm.numThreads = 1;
    ort.env.logLevel = "error";
    const batches = await read("batches.safetensors");
    const options = { executionProviders: ["wasm"] }; // the memory that is drawn is that of WebAssembly
    for await (const loss of train(ort, (name) => read(`${folder}/${name}`), batches, steps, options)) {
      postMessage({ loss, heap: Math.max(...memories.map((memory) => memory.buffer.byteLength)) });
    }
    postMessage({ done: true });
  } catch (error) {
    postMessage({ error: error.message.split("\n")[0] });
  }
};
