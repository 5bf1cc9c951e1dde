// node node.mjs DIR BATCHES STEPS [PACKAGE] prints each step's loss. PACKAGE, onnxruntime-node or onnxruntime-web, is
// looked for where the command is run.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { train } from "./train.mjs";

const [folder, batches, steps, name = "onnxruntime-node"] = process.argv.slice(2);
const read = async (path) => {
  const { buffer, byteOffset, byteLength } = await readFile(path);
  return buffer.slice(byteOffset, byteOffset + byteLength);
};
try {
  const ort = createRequire(resolve("here.js"))(name);
  const losses = train(ort, (file) => read(join(folder, file)), await read(batches), Number(steps));
  for await (const loss of losses) console.log(loss);
} catch (error) {
  console.error(error.message.split("\n")[0]);
  process.exitCode = 1;
}
