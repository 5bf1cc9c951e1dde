"""Limits of the system, lowered for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def few_open_files(count: int = 64) -> Iterator[None]:
    """Begin with a low limit of open files, which the process may raise."""
    resource = pytest.importorskip("resource")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
