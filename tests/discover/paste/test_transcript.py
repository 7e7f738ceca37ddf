"""Transcripts, names of saved files, two readings of one file."""

from __future__ import annotations

import pytest

from nodeagent.discover.paste.names import Moment, path_of, stem_of
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.discover.paste.transcript import file_of, sections
from nodeagent.discover.paste.values import read_values
from nodeagent.model.hostreport import Sample

TRANSCRIPT = """\
root@n1:~# cat /proc/irq/default_smp_affinity
ff
[root@n1 ~]# cat /sys/devices/system/cpu/nohz_full

$ sudo cat /sys/devices/system/cpu/isolated
2-7
==> /proc/irq/45/smp_affinity_list <==
0-3

==> /proc/irq/46/smp_affinity_list <==
4
/sys/fs/cgroup/a.slice/cpuset.cpus.partition:
isolated
/sys/fs/cgroup/b.slice/cpuset.cpus.partition
root invalid (Parent is not a partition root)
$ uname -r
6.8.0-45-generic
# a comment, no command
"""


def test_each_form_names_its_file() -> None:
    part = read_values(TRANSCRIPT, "terminal.txt")
    assert part is not None
    assert part.files == {
        "proc/irq/default_smp_affinity": "ff",
        "sys/devices/system/cpu/nohz_full": "",
        "sys/devices/system/cpu/isolated": "2-7",
        "proc/irq/45/smp_affinity_list": "0-3",
        "proc/irq/46/smp_affinity_list": "4",
        "sys/fs/cgroup/a.slice/cpuset.cpus.partition": "isolated",
        "sys/fs/cgroup/b.slice/cpuset.cpus.partition": (
            "root invalid (Parent is not a partition root)"
        ),
        "proc/sys/kernel/osrelease": "6.8.0-45-generic",
    }


def test_a_comment_is_no_command() -> None:
    assert [p.command for p in sections("# isolate the cores\nisolated_cores=2-7")] == [None]
    assert sections("# cat /etc/default/grub\nX")[0].path == "/etc/default/grub"


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("cat /proc/cmdline", "/proc/cmdline"),
        ("cat /proc/cmdline | tr ' ' '\\n'", "/proc/cmdline"),
        ("head -n 5 /proc/meminfo", "/proc/meminfo"),
        ("cat /proc/irq/*/node", None),
        ("cat /a /b", None),
        ("ls /proc", None),
    ],
)
def test_which_file_a_command_prints(command: str, path: str | None) -> None:
    assert file_of(command) == path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("proc-irq-1056-smp_affinity", "proc/irq/1056/smp_affinity"),
        ("node1-meminfo.txt", "sys/devices/system/node/node1/meminfo"),
        ("pods/p1/cpu.max", "sys/fs/cgroup/pods/p1/cpu.max"),
        ("cgroup-cpuset.cpus.effective", "sys/fs/cgroup/pasted/cpuset.cpus.effective"),
        ("cpu.max.before", "sys/fs/cgroup/pasted/cpu.max"),
        ("vm.nr_hugepages", "proc/sys/vm/nr_hugepages"),
        ("notes.txt", None),
    ],
)
def test_names(name: str, path: str | None) -> None:
    assert path_of(name) == path


def test_moments() -> None:
    assert stem_of("cpu.max.after") == ("cpu.max", Moment(later=True))
    assert stem_of("interrupts-t10.txt") == ("interrupts", Moment(later=True, at_s=10.0))
    assert stem_of("meminfo.txt") == ("meminfo", None)


def test_the_later_reading_holds_and_both_are_kept() -> None:
    texts = [
        Text(name="cpuset.cpus.before", text="4-7"),
        Text(name="cpuset.cpus.after", text="0-15"),
    ]
    snapshot = read_paste(texts).snapshot
    assert snapshot.texts["sys/fs/cgroup/pasted/cpuset.cpus"] == "0-15"
    assert snapshot.pasted is not None
    assert not snapshot.pasted.conflicts
    assert [s.later for s in snapshot.pasted.of(Sample)] == [False, True]
