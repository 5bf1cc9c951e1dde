"""Write a sample model: ``python -m sample_models.generate gpt -o gpt.onnx --layers 12 --batch 8``.

Each model's options are the arguments of its builder; ``python -m sample_models.generate gpt --help`` lists them.
``--all-small`` writes the small files of the repository anew.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from pathlib import Path

import onnx

from sample_models.catalogue import BUILDERS, SMALL

HERE = Path(__file__).parent
LARGEST_FILE = 2**31 - 2**20
"""Bytes of weights above which they need a file of their own; protobuf ends at 2 GiB."""


def serialized(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model's file, the same for the same model."""
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def write(model: onnx.ModelProto, path: Path, *, external_data: bool = False) -> None:
    """Write a model, its weights to ``<path>.data`` if asked for or if they are too large for one file."""
    if external_data or sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST_FILE:
        location = f"{path.name}.data"
        path.with_name(location).unlink(missing_ok=True)  # onnx appends to what is there
        onnx.save_model(model, path, save_as_external_data=True, location=location)
    else:
        path.write_bytes(serialized(model))


def write_small(folder: Path) -> list[Path]:
    """Write all small models to ``folder`` and return their paths."""
    paths = [folder / f"{name}.onnx" for name in SMALL]
    for path, build in zip(paths, SMALL.values(), strict=True):
        path.write_bytes(serialized(build()))
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    if options.pop("all_small"):
        write_small(options["output"] or HERE)
        return
    name, output, external_data = (options.pop(key, None) for key in ("name", "output", "external_data"))
    if name is None:
        parser.error("name a model, or give --all-small")
    try:
        model = BUILDERS[name](**options)
    except ValueError as error:
        parser.error(str(error))
    write(model, output or Path(f"{name}.onnx"), external_data=bool(external_data))


def _parser() -> argparse.ArgumentParser:
    """Make the parser: one subcommand a builder, one option an argument of it."""
    parser = argparse.ArgumentParser(prog="python -m sample_models.generate", description=__doc__)
    parser.add_argument("--all-small", action="store_true", help="write the repository's small files")
    output_help = "file to write (default NAME.onnx); with --all-small a folder"
    parser.add_argument("-o", "--output", type=Path, help=output_help)
    subparsers = parser.add_subparsers(dest="name", metavar="NAME", title="models")
    for name, builder in BUILDERS.items():
        description = inspect.getdoc(builder) or ""
        sub = subparsers.add_parser(name, description=description, help=description.splitlines()[0])
        sub.add_argument("-o", "--output", type=Path, default=argparse.SUPPRESS, help=f"default {name}.onnx")
        sub.add_argument("--external-data", action="store_true", help="weights in a file of their own beside it")
        for option, parameter in inspect.signature(builder).parameters.items():
            flag, default = f"--{option.replace('_', '-')}", parameter.default
            if isinstance(default, bool):
                sub.add_argument(
                    flag, action=argparse.BooleanOptionalAction, default=default, help=f"default {default}"
                )
            elif isinstance(default, tuple):
                sub.add_argument(flag, type=int, nargs="+", default=default, help=f"default {default}")
            else:
                shown = "symbolic" if default is None else default
                sub.add_argument(flag, type=int, default=default, help=f"default {shown}")
    return parser


if __name__ == "__main__":
    main()
