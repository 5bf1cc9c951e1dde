// Reads what `ckplan artifacts` writes as its checkpoint, and batches in the same format.

const KINDS = { F32: ["float32", Float32Array], I64: ["int64", BigInt64Array] };

export function tensors(ort, buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const read = ({ dtype, shape, data_offsets: [begin, end] }) =>
    new ort.Tensor(KINDS[dtype][0], new KINDS[dtype][1](buffer.slice(start + begin, start + end)), shape);
  return Object.fromEntries(Object.entries(header).map(([name, about]) => [name, read(about)]));
}

export function zeros(ort, { dtype, shape }) {
  const size = shape.reduce((a, b) => a * b, 1);
  return new ort.Tensor(dtype, dtype === "int64" ? new BigInt64Array(size) : new Float32Array(size), shape);
}

// Of tensors that hold one batch after the other along their first axis, the batch of a step.
export function batch(ort, tensors, step) {
  const part = ({ type, data, dims: [count, ...shape] }) => {
    const size = data.length / count;
    return new ort.Tensor(type, data.slice((step % count) * size, ((step % count) + 1) * size), shape);
  };
  return Object.fromEntries(Object.entries(tensors).map(([name, tensor]) => [name, part(tensor)]));
}
