"""Fixtures for all tests: where the shared corpus is, and what this machine allows."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import pytest
from hypothesis import settings

# A busy machine is no failure: tests have no upper time bounds.
settings.register_profile("nodeagent", deadline=None)
settings.load_profile("nodeagent")

# A suite started in the background inherits an ignored SIGINT, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The shared material beside the project; skips with a sentence where it is missing."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared corpus is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def bin_dir() -> pathlib.Path:
    """Where the installed commands are (the virtual environment that runs the tests)."""
    return pathlib.Path(sys.executable).parent


@pytest.fixture
def as_root() -> None:
    """Skips with a sentence when not root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def rights() -> None:
    """Skips with a sentence where eBPF programs may not be loaded."""
    from nodeagent.errors import NodeagentError
    from nodeagent.probe.loader import BpfObject

    try:
        with BpfObject("selftest") as programs:
            programs.load()
    except NodeagentError as error:
        pytest.skip(str(error))
