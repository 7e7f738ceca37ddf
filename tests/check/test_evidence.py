"""Evidence is what was pasted: no file is named that nobody gave, and no figure that none told."""

from __future__ import annotations

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Finding, Verdict


def found(text: str, check_id: str, name: str = "stdin") -> list[Finding]:
    paste = read_paste([Text(name=name, text=text)])
    return [f for f in judge(paste.snapshot, Policy(), 0) if f.id == check_id]


def test_an_interrupt_without_a_name_cites_its_own_file_only() -> None:
    text = "/sys/devices/system/cpu/isolated: 2-7\n/proc/irq/46/smp_affinity_list: 4\n"
    (f,) = found(text, "irq.on-isolated")
    assert f.verdict is Verdict.WARN
    assert f.message.endswith("isolated CPUs")
    paths = [e.path for e in f.evidence]
    assert paths == [
        "/proc/irq/46/smp_affinity_list (from stdin)",
        "/sys/devices/system/cpu/isolated (from stdin)",
    ]


def test_a_profile_alone_says_nothing_of_isolated_cpus() -> None:
    text = "Current active profile: cpu-partitioning\n"
    assert [f.verdict for f in found(text, "isolation.tuned")] == [Verdict.NA]
    (f,) = found(f"{text}/sys/devices/system/cpu/isolated:\n", "isolation.tuned")
    assert f.verdict is Verdict.WARN
    assert f.evidence[1].text == "(empty)"


def test_a_card_that_does_not_tell_its_lanes_is_not_short_of_any() -> None:
    at = "/sys/bus/pci/devices/0000:41:00.0"
    text = (
        f"{at}/class: 0x030200\n{at}/vendor: 0x10de\n{at}/device: 0x2330\n"
        f"{at}/current_link_width: 8\n{at}/current_link_speed: 8.0 GT/s PCIe\n"
    )
    assert not [f for f in found(text, "pcie.width") if f.verdict is Verdict.WARN]
    (f,) = found(f"{text}{at}/max_link_width: 16\n", "pcie.width")
    assert (f.verdict, [e.text for e in f.evidence]) == (Verdict.WARN, ["8", "16"])


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    text = (
        "/sys/fs/cgroup/b.slice/cpuset.cpus.partition: root invalid (\x1b]0;x\x07 Parent is no)\n"
    )
    (f,) = (x for x in found(text, "cgroup.partition") if x.verdict is Verdict.FAIL)
    assert f.message.isprintable()


def test_a_clock_without_an_offset_is_not_on_time() -> None:
    text = "Stratum         : 3\nSystem time     : {} seconds slow of NTP time\n"
    text += "Leap status     : Normal\n"
    assert [f.verdict for f in found(text.format("0.000000100"), "feed.clock")] == [Verdict.OK]
    assert [f.verdict for f in found(text.format("NaN"), "feed.clock")] == [Verdict.UNKNOWN]


def test_a_cell_whose_cpus_cannot_be_read_is_no_healthy_guest() -> None:
    text = '<domain><cpu><numa><cell id="0" cpus="{}" memory="1"/></numa></cpu></domain>'
    assert not [f for f in found(text.format("0-3"), "paste.damaged") if f.verdict != Verdict.OK]
    for cpus in ("&a11;", "0-4294967295"):
        assert [f.verdict for f in found(text.format(cpus), "paste.damaged")] == [Verdict.UNKNOWN]
