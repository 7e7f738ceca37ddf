"""The protocol's orders as arm64 instructions, where arm64 orders nothing by itself.

Compiled, not run: no arm64 machine has run the ring (docs/proofs.md). Looked for is what the order
needs: a release store is `stlr`, an acquire load `ldar` (or `ldapr`), a release or full fence `dmb
ish`, an acquire fence `dmb ishld` (or `dmb ish`), each on its side of the plain accesses.
"""

from __future__ import annotations

import pathlib
import platform
import re
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
CORE = HERE.parent.parent / "nodeagent" / "native" / "core"
CROSS = pathlib.Path("/usr/aarch64-linux-gnu/include")


def compilers() -> dict[str, list[str]]:
    """What compiles for arm64 here."""
    found = {}
    if path := shutil.which("aarch64-linux-gnu-gcc"):
        found["gcc"] = [path]
    if platform.machine() == "aarch64" and (path := shutil.which("gcc")):
        found["gcc"] = [path]
    if (path := shutil.which("clang")) and CROSS.is_dir():
        found["clang"] = [path, "--target=aarch64-linux-gnu", "-isystem", str(CROSS)]
    return found


@pytest.fixture(params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest) -> list[str]:
    """An arm64 compiler's first words."""
    words = compilers().get(request.param)
    if words is None:
        pytest.skip(f"no {request.param} for arm64 (gcc-aarch64-linux-gnu brings what both need)")
    return words


def functions(compiler: list[str], core: pathlib.Path, source: pathlib.Path) -> dict[str, str]:
    """Each function's instructions, one a line, as "op operands"."""
    done = subprocess.run(
        [*compiler, "-std=gnu11", "-O2", "-w", "-D_GNU_SOURCE", "-march=armv8-a", f"-I{core}",
         "-S", "-o", "-", str(source)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, str] = {}
    for match in re.finditer(r"^(\w+):[^\n]*\n(.*?)^\s*\.size\s+\1,", done.stdout, re.M | re.S):
        lines = (line.split("//")[0].strip() for line in match[2].splitlines())
        code = (line for line in lines if line and not line.startswith(".") and line[-1] != ":")
        found[match[1]] = "\n".join(" ".join(line.split()) for line in code)
    return found


def in_order(code: str, *patterns: str) -> bool:
    """Whether instructions matching the patterns follow one another, others between or not."""
    at = 0
    for pattern in patterns:
        match = re.compile(rf"^{pattern}", re.M).search(code, at)
        if match is None:
            return False
        at = match.end()
    return True


LOAD = r"ldr x\d+, \[x\d+"
STORE = r"str x\d+, \[x\d+"
ACQUIRE = r"(ldar|ldapr) x\d+, \[x\d+"
RELEASE = r"stlr x\d+, \[x\d+"
STEPS = {
    # reserve, then the fence, then the first word of the slot.
    "step_reserve": (STORE, "dmb ish$", r"str x\d+, \[x\d+, #?8\]"),
    # the slot's last word, then seq with release.
    "step_push": (r"str x\d+, \[x\d+, #?8\]", r"str x\d+, \[x\d+, #?56\]", RELEASE),
    "step_commit": (RELEASE,),
    "step_seq": (ACQUIRE,),
    # seq with acquire, the payload, the acquire fence, reserve.
    "step_read": (ACQUIRE, r"ldr x\d+, \[x\d+, #?40\]", r"dmb ish(ld)?$", LOAD),
    "step_commit_read": (ACQUIRE,),
    "step_cursor": (STORE, RELEASE),
    # first with release, reserve, fence ... seq with release, commit with release.
    "step_frame": (RELEASE, STORE, "dmb ish$", RELEASE, RELEASE),
    # the futex word with acquire, the flag, the full fence, seq with acquire, the system call.
    "step_wait": (
        r"(ldar|ldapr) w\d+, \[x\d+", r"str w\d+, \[x\d+", "dmb ish$", ACQUIRE, "bl syscall"
    ),
    # the futex word with release, the full fence, the look at the flags.
    "na_ring_wake": (
        r"stlr w\d+, \[x\d+", "dmb ish$", r"ldr w\d+, \[x\d+, #?128\]|ldr w\d+, \[x\d+\]",
        "bl syscall",
    ),
}  # fmt: skip


def missing(compiler: list[str], core: pathlib.Path) -> set[str]:
    """Steps whose order is not in the instructions."""
    code = functions(compiler, core, HERE / "fences.c")
    code |= {
        name: text
        for name, text in functions(compiler, core, core / "ring.c").items()
        if name == "na_ring_wake"
    }
    return {name for name, order in STEPS.items() if not in_order(code[name], *order)}


def test_each_order_is_an_instruction(compiler: list[str]) -> None:
    assert missing(compiler, CORE) == set()


@pytest.mark.parametrize(
    ("file", "old", "new", "lost"),
    [
        ("ring.h", "RING_FENCE(ring->hot, __ATOMIC_RELEASE);", ";", "step_reserve"),
        ("ring.h", "(slot, ring->position, __ATOMIC_RELEASE)",
         "(slot, ring->position, __ATOMIC_RELAXED)", "step_push"),
        ("ring.h", "commit, ring->position, __ATOMIC_RELEASE",
         "commit, ring->position, __ATOMIC_RELAXED", "step_commit"),
        ("ring_view.h", "position)->seq, __ATOMIC_ACQUIRE", "position)->seq, __ATOMIC_RELAXED",
         "step_seq"),
        ("ring_view.h", "RING_FENCE(view->hot, __ATOMIC_ACQUIRE);", ";", "step_read"),
        ("ring.c", "++ring->futex, __ATOMIC_RELEASE", "++ring->futex, __ATOMIC_RELAXED",
         "na_ring_wake"),
        ("ring.c", "RING_FENCE(ring->hot, __ATOMIC_SEQ_CST);", ";", "na_ring_wake"),
        ("ring_reader.h", "		__atomic_thread_fence(__ATOMIC_SEQ_CST);", "", "step_wait"),
        ("ring_reader.h", "hot->futex, __ATOMIC_ACQUIRE", "hot->futex, __ATOMIC_RELAXED",
         "step_wait"),
    ],
)  # fmt: skip
def test_a_removed_order_is_noticed(
    compiler: list[str], tmp_path: pathlib.Path, file: str, old: str, new: str, lost: str
) -> None:
    core = tmp_path / "core"
    shutil.copytree(CORE, core)
    text = (core / file).read_text()
    assert old in text
    (core / file).write_text(text.replace(old, new))
    assert lost in missing(compiler, core)
