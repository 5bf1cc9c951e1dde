"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Machines that run tests are shared and slow at times; how long an example takes says nothing about it.
settings.register_profile("ckplan", deadline=None)
settings.load_profile("ckplan")
