"""Initial values in a safetensors file.

The format is eight bytes with the length of a JSON header, the header (element type, shape and place of each tensor),
and the numbers in little endian: any language reads it in a few lines and without a library, and torch, Hugging Face's
tools and ``--params`` read it as well. https://huggingface.co/docs/safetensors describes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

TYPES: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT: "F32",
    ir.DataType.DOUBLE: "F64",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.INT64: "I64",
    ir.DataType.INT32: "I32",
    ir.DataType.INT16: "I16",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT8: "U8",
    ir.DataType.BOOL: "BOOL",
}
"""The element types that a checkpoint can hold, and their names in it."""

_ALIGNMENT = 8
"""The numbers begin at a multiple of this many bytes, so that they can be used where they lie."""


def write_checkpoint(tensors: Mapping[str, ir.TensorProtocol], path: Path) -> None:
    """Write tensors, the widest element types first: then each lies at a multiple of its element's size.

    Args:
        tensors: by name; of the types in `TYPES`.
        path: the file.

    Raises:
        OSError: it cannot be written.
    """
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    header: dict[str, object] = {}
    place = 0
    for name in order:
        tensor = tensors[name]
        end = place + tensor.nbytes
        shape = [int(size) for size in tensor.shape.numpy()]
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            file.write(tensors[name].tobytes())
