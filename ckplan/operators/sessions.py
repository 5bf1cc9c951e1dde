"""The one place where onnxruntime's sessions are opened: with the kernels of operators that it does not know itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ckplan.arguments import path_of
from ckplan.errors import EnvironmentUnavailableError, ModelError

_LIBRARIES: list[str] = []

CPU_ONLY = ("CPUExecutionProvider",)

PACKAGES = ("onnxruntime-gpu", "onnxruntime")
"""The packages that onnxruntime comes in; they overwrite each other's files."""


def use_custom_ops(library: str | os.PathLike[str]) -> None:
    """Give onnxruntime a shared library of custom operators in every session that is opened from now on.

    Processes that ckplan starts to measure in get it, too.

    Args:
        library: a file that exports ``RegisterCustomOps`` (see onnxruntime's documentation of custom operators).

    Raises:
        ModelError: there is no such file.
        EnvironmentUnavailableError: onnxruntime cannot use it; later sessions go without it.
    """
    import onnxruntime

    file = path_of("the library of custom operators", library)
    if not file.is_file():
        raise ModelError(f"there is no library {library} of custom operators", "name the .so, .dylib or .dll")
    path = str(file.resolve())
    if path not in _LIBRARIES:
        _register(onnxruntime.SessionOptions(), path)  # every session would fail of what it cannot use
        _LIBRARIES.append(path)


def use_only(libraries: Iterable[str]) -> None:
    """Use these libraries from now on, and no others: what a process that serves several requests is told by each."""
    _LIBRARIES[:] = libraries


def custom_ops() -> tuple[str, ...]:
    """The libraries of custom operators in use, in the order in which they were named."""
    return tuple(_LIBRARIES)


def open_session(
    source: str | bytes,
    options: Any,
    providers: Sequence[Any] = CPU_ONLY,
    *,
    without: Iterable[str] = (),
) -> Any:
    """Open an ``onnxruntime.InferenceSession``.

    Args:
        source: path of a model, or a serialised one.
        options: an ``onnxruntime.SessionOptions``; gets the libraries of custom operators.
        providers: execution providers, as onnxruntime takes them.
        without: optimisers of onnxruntime to leave out.

    Raises:
        EnvironmentUnavailableError: onnxruntime cannot use a library of custom operators.
        ModelError: onnxruntime cannot be told the path.
        Exception: whatever onnxruntime raises when it cannot load the model.
    """
    import onnxruntime

    if isinstance(source, str):
        _check_path(source)
    for library in _LIBRARIES:
        _register(options, library)
    return onnxruntime.InferenceSession(
        source, options, providers=list(providers), disabled_optimizers=list(without) or None
    )


def _check_path(path: str) -> None:
    """See that onnxruntime can be told where a file is.

    Raises:
        ModelError: its path is not in UTF-8.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in path):
        raise ModelError(
            f"onnxruntime reads no file whose path is not in UTF-8, as that of {Path(path).name!a}", "rename it"
        )


def _register(options: Any, library: str) -> None:
    """Give a session's options a library of custom operators.

    Raises:
        EnvironmentUnavailableError: onnxruntime cannot use it.
    """
    try:
        options.register_custom_ops_library(library)
    except Exception as error:  # its exceptions have no base class of their own
        reason = clean(str(error))[:300]
        raise EnvironmentUnavailableError(
            f"onnxruntime cannot use {library} as a library of custom operators ({reason})",
            "build it for this system and this onnxruntime; it has to export RegisterCustomOps",
        ) from error


def clean(message: str) -> str:
    """An onnxruntime message in one line, without its code prefix and its source paths."""
    text = re.sub(r"^(\[ONNXRuntimeError\] : \d+ : \w+ : |Error in execution: )", "", message)
    text = re.sub(
        r"Non-zero status code returned while running (\S+) node\. Name:('[^']*') Status Message: ", r"\1 \2: ", text
    )
    function = r"(\S+ )?onnxruntime::[\w:<>]+\([^()]*\) (const )?"
    text = re.sub(rf"/\S*onnxruntime/core/\S+:\d+ ({function})?", "", text)
    text = re.sub(r"^Load model from .*? failed:\s*", "", text)  # whoever tells it names the file; it may be a copy
    long_winded = (
        r"ONNX Runtime only \*guarantees\* support .* Current official support for domain (\S+) is till opset (\d+)"
    )
    text = re.sub(long_winded, r"it knows opsets of \1 up to \2 only", " ".join(text.split()))
    return text.rstrip(".")
