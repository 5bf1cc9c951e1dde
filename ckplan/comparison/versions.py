"""Which programs made a snapshot."""

from __future__ import annotations

from importlib.metadata import version


def ckplan_version() -> str:
    """Version of ckplan."""
    return version("ckplan")


def onnxruntime_version() -> str:
    """Version of the onnxruntime that is installed."""
    import onnxruntime

    return str(onnxruntime.__version__)
