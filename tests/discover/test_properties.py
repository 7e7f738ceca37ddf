"""Whatever the bytes: readers give a value or a record, and what is written reads back."""

from __future__ import annotations

import json

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.cli.render.topology_json import topology_json
from nodeagent.discover import boot, capture, gpu, irq, net, numa, procs, redact
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Failed, Link, TableStore
from nodeagent.errors import ReadError
from nodeagent.model.cpuset import CpuSet

PART = st.text(
    st.characters(categories=["L", "N", "P", "S"], exclude_characters="/") | st.just(" "),
    min_size=1,
    max_size=8,
).filter(lambda t: t not in (".", "..") and t == t.strip())
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
# Of what can be seen: all else is written as an escape, so that no terminal obeys it.
LINE = st.text(st.characters(categories=["L", "N", "P", "S"]) | st.just(" "), max_size=20)
TEXT = st.lists(LINE, max_size=4).map("\n".join).map(lambda t: t.strip("\0 \t\r\n").encode())
ENTRY: st.SearchStrategy[Entry] = st.one_of(
    TEXT,
    st.builds(Link, PATH),
    st.builds(Failed, LINE.filter(lambda t: t == t.strip() and bool(t))),
    st.none(),
)


@example({":": Link("0"), "a:": None, "%3A": b"1", "%253A:": Failed("x"), "b:/c": Link("d:")})
@given(st.dictionaries(PATH, ENTRY, max_size=8))
def test_captures_read_back(table: dict[str, Entry]) -> None:
    found = capture.parse("x", capture.render(table).encode())
    # A directory that has something in it needs no line of its own.
    parents = {p.rpartition("/")[0] for p in table}
    assert found == {p: e for p, e in table.items() if e is not None or p not in parents}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_capture_or_a_sentence(data: bytes) -> None:
    for text in (data, capture.MAGIC.encode() + b"\n" + data):
        try:
            capture.parse("x", text)
        except ReadError as error:
            assert error.remedy


@given(st.lists(st.tuples(st.from_regex(r"[a-z_.]{1,8}", fullmatch=True), st.none() | LINE)))
def test_boot_arguments_read_back(args: list[tuple[str, str | None]]) -> None:
    args = [(n, v.replace('"', "") if v is not None else None) for n, v in args]
    text = " ".join(n if v is None else f'{n}="{v}"' for n, v in args)
    assert boot.parse_cmdline(text) == tuple(args)
    assert boot.parse_cmdline(text + " -- isolcpus=3") == tuple(args)


@given(st.text(max_size=200))
def test_any_text_is_boot_arguments(text: str) -> None:
    root = Root(TableStore({}), live=False, label="x")
    args = (*boot.parse_cmdline(text), ("isolcpus", text), ("nohz_full", text))
    boot.asked_isolation(root, args, CpuSet.of(range(8)))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_process_or_none(data: bytes) -> None:
    for text in (data, b"1 (" + data + b") S 1 " + data):
        procs._Stat.parse(text)
        procs._cgroup(text)
        procs._uid(b"Uid:\t" + text)
    procs._title(data.decode("latin-1"))
    procs._title(data.hex())


@given(st.text(max_size=400) | st.sampled_from(["9" * 5000, "²", "٣", "1" * 5000 + " kB"]))
def test_any_text_in_any_file(text: str) -> None:
    table: dict[str, Entry] = {
        "proc/interrupts": f"  CPU0 CPU1\n 7: {text}\n{text}\n8: 1 2 x 3-edge y".encode(
            "utf-8", "replace"
        ),
        "proc/net/route": f"x\n{text}\n{text}".encode("utf-8", "replace"),
        "sys/devices/system/node/node0/meminfo": text.encode("utf-8", "replace"),
        "sys/devices/system/node/node0/distance": text.encode("utf-8", "replace"),
        "sys/devices/system/node/node0/cpulist": text.encode("utf-8", "replace"),
    }
    for name in (
        "online",
        "possible",
        "cpu0/cache/index0/shared_cpu_list",
        "cpu0/cache/index0/size",
    ):
        table[f"sys/devices/system/cpu/{name}"] = text.encode("utf-8", "replace")
    table["proc/meminfo"] = b"MemTotal: " + text.encode("utf-8", "replace") + b" kB"
    table["proc/mounts"] = b"tmpfs /dev/shm tmpfs size=" + text.encode("utf-8", "replace")
    snapshot = read_snapshot(Root(TableStore(table), live=False, label="x"))
    msgspec.json.encode(topology_json(snapshot))
    root = Root(TableStore(table), live=False, label="x")
    irq.read_irqs(root, ())
    net.read_nics(root)
    numa.read_nodes(root, CpuSet.of([0]))
    redact.redact(table, redact.Masks())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["available", "gpus", "index", "bdf", "links"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(JSON)
def test_any_answer_of_the_device_child(value: object) -> None:
    reading = gpu.decode(json.dumps(value))
    assert reading.nvml.available or reading.nvml.reason
