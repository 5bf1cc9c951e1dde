"""What the loops in other languages are built and run with, and why they cannot be where it is not there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnxruntime
import pytest

HEADER = "onnxruntime_cxx_api.h"


def node() -> str:
    """What runs JavaScript."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def node_package(name: str) -> Path:
    """The folder of node modules that holds a package, if there is node to run it."""
    node()
    return npm_package(name)


def npm_package(name: str) -> Path:
    """The folder of node modules that holds a package: that of ``NODE_PATH``."""
    folders = [Path(folder) for folder in os.environ.get("NODE_PATH", "").split(os.pathsep) if folder]
    found = next((folder for folder in folders if (folder / name / "package.json").is_file()), None)
    if found is None:
        pytest.skip(f"no package {name} in NODE_PATH: npm install --ignore-scripts {name}")
    return found


def compiler() -> str:
    """The C++ compiler."""
    found = shutil.which(os.environ.get("CXX", "c++"))
    if found is None:
        pytest.skip("no C++ compiler is installed")
    return found


def headers() -> Path:
    """The folder of onnxruntime's headers: ``ONNXRUNTIME_INCLUDE``, or where Debian's libonnxruntime-dev has them."""
    folder = Path(os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))
    if not (folder / HEADER).is_file():
        pytest.skip(f"no {HEADER} in {folder}: install libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE")
    return folder


def native_library(folder: Path, name: str) -> Path:
    """The library inside the Python package, under the name that programs look for, in a folder of ours."""
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("the Python package of onnxruntime holds no library to link with")
    link = folder / name
    link.symlink_to(found[0])
    return link
