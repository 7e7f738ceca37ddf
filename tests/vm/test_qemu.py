"""A boot that fails: the emulator's own fault is told apart from a machine's.

A program of a few lines stands where QEMU is: it says on its console what it is told, and ends.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from tests.vm.machine import machines
from tests.vm.qemu import BOOTS, QEMU, EmulatorFaultError, Guest, GuestError

PROGRAM = """#!/bin/sh
echo boot >> {folder}/boots
for word; do case "$word" in file:*) cat {folder}/said > "${{word#file:}}";; esac; done
"""
FAULT = "[    3.1] Oops: int3: 0000 [#1] PREEMPT SMP\nKernel panic - not syncing\n"
LOST = "Kernel panic - not syncing: VFS: Unable to mount root fs\n"


@pytest.fixture
def ending(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder whose file `said` is all that a started machine says; `boots` has a line each."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing: apt-get install util-linux")
    program = tmp_path / "bin" / QEMU
    program.parent.mkdir()
    program.write_text(PROGRAM.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / f"accelerator-{boot_id}").write_text("tcg\n")
    return tmp_path


def _boot(folder: pathlib.Path, said: str) -> None:
    (folder / "said").write_text(said)
    with Guest(machines()["small"], folder, None):
        pass


def test_a_machine_that_the_emulator_breaks_in_every_boot_is_not_a_failure(
    ending: pathlib.Path,
) -> None:
    with pytest.raises(EmulatorFaultError, match=f"small: .*each of {BOOTS} boots, and it never"):
        _boot(ending, FAULT)
    assert len((ending / "boots").read_text().splitlines()) == BOOTS


def test_any_other_end_is_a_failure_at_once(ending: pathlib.Path) -> None:
    with pytest.raises(GuestError, match="Unable to mount root fs"):
        _boot(ending, LOST)
    assert len((ending / "boots").read_text().splitlines()) == 1


_begun: list[str] = []


def test_a_test_whose_machine_the_emulator_broke_begins_again(
    machine: Callable[[str], Guest],
) -> None:
    """Nothing is booted here: the machine is only what makes it such a test."""
    _begun.append(str(machine))
    if len(_begun) == 1:
        raise EmulatorFaultError("made up by this test")
    assert len(_begun) == 2
