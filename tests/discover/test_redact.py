"""Secrets planted where real machines have them: none leaves, and equal stays equal."""

from __future__ import annotations

import json
import pathlib
import re

import msgspec
import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.cli.render.topology_json import topology_json
from nodeagent.discover import engines, kmsg
from nodeagent.discover.archive import open_archive
from nodeagent.discover.capture import render
from nodeagent.discover.masks import Masks, Scrubber
from nodeagent.discover.paste import klog
from nodeagent.discover.redact import redact
from nodeagent.discover.redact_words import command
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, TableStore
from tests.hosts.generate import MACHINES
from tests.hosts.tree import Table

SECRETS: dict[str, tuple[str, ...]] = {
    "serial": ("S64GNE0R301122", "1650923000417", "0x3f9c77aa12ee01b5", "CZ3402LKQ7"),
    "uuid": (
        "0b0c5a6e-1111-4222-8333-444455556666",
        "9d1c3b2a-7777-4e1f-9aaa-bbccddeeff00",
        "3a5f7c91_2222_4b3c_8d4e_0f1e2d3c4b5a",
    ),
    "mac": ("02:42:ac:11:00:02", "0242ac110002", "b8-59-9f-12-34-56"),
    "ip": ("10.20.30.40", "192.0.2.77", "2001:db8:77::1234", "fe80::ba59:9fff:fe12:3456"),
    "host": ("gpu-rack7-n03", "filer9.corp.example", "ip-10-20-30-41"),
    "user": ("carolbaker", "dmitri_k", "erinq"),
    "token": ("hunter2swordfish", "hf_QwErTyUiOpAsDfGhJkLz", "ghp_abcdefghijklmnopqrstuvwx12"),
    "password": ("correct-horse-battery", "Tr0ub4dor+3", "pgpass77"),
    "wwn": ("5000c500a1b2c3d4", "naa.600508b1001c4d2a", "eui.0025385b71b0f1a2"),
    "guid": ("0c42:a103:00ab:12cd", "0x0c42a10300ab12ce"),
    "label": ("ACMEROOT", "trading-data"),
    "url": ("https://carol:s3cr3t@registry.corp.example/v2",),
    "email": ("ops.oncall@corp.example",),
    "key": ("AKIAIOSFODNN7EXAMPLE", "sk-proj-abcdEFGH12345678ijkl"),
}
S = {kind: list(values) for kind, values in SECRETS.items()}
LOG = (
    f"[    0.000000] Command line: ro root=LABEL={S['label'][0]} db.password={S['password'][0]}",
    f'[    0.000000] Unknown kernel command line parameters "api_token={S["token"][0]}"',
    f"[    1.000000] DMI: ACME Rack/X, BIOS 1.2 serial {S['serial'][3]}",
    "[   99.000000] NVRM: Xid (PCI:0000:01:00): 79, pid=77, name=pt_main_thread, GPU has fallen",
    f"[  100.000000] python3[77]: segfault at 0 ip 00007f sp 00007f in {S['user'][2]}.so "
    f"from /home/{S['user'][2]}/x by {S['email'][0]}",
    f"[  101.000000] oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/kubepods/pod{S['uuid'][2]},"
    f"task={S['user'][1]},pid=9,uid=0",
    f"[  102.000000] Out of memory: Killed process 9 ({S['user'][1]}) total-vm:1kB",
    f"[  103.000000] nvme nvme0: I/O tag 5 timeout, completion polled wwn {S['wwn'][2]}",
    f"[  104.000000] Buffer I/O error on dev sda1, logical block 1, id {S['wwn'][0]} {S['wwn'][1]}",
    f"[  105.000000] mlx5_core 0000:02:00.0: node guid {S['guid'][1]} and {S['guid'][0]}",
    f"[  106.000000] audit: login from {S['ip'][1]} with {S['token'][2]} {S['key'][0]} to "
    f"{S['url'][0]}",
    f"[  107.000000] EXT4-fs error (device sda1): on {S['host'][1]} by {S['email'][0]}, host "
    f"{S['host'][0]}, {S['host'][2]}, {S['ip'][3]}, {S['ip'][2]}, mac {S['mac'][2]}",
)
PROCESS = {
    "pid": 77,
    "role": "vllm",
    "comm": "python3",
    "title": f"/home/{S['user'][0]}/venv/bin/python3 -m vllm.entrypoints.openai.api_server --model "
    f"/data/{S['label'][1]} --tensor-parallel-size 8 --api-key {S['key'][1]} "
    f"--hf-token={S['token'][1]} --db {S['url'][0]} password={S['password'][1]}",
    "cgroup": f"/kubepods.slice/kubepods-burstable-pod{S['uuid'][2]}.slice/x.scope",
    "thread_count": 1,
    "threads": [{"tid": 77, "comm": f"w-{S['host'][0]}", "cpus": "0-3", "last_cpu": 1}],
}


def planted() -> Table:
    table = MACHINES["nps4-4gpu"]()
    put: dict[str, str] = {
        "proc/cmdline": f"ro root=PARTUUID={S['uuid'][0]} isolcpus=managed_irq,domain,4-15,20-31 "
        f"nohz_full=4-15,20-31 rd.luks.key={S['password'][0]} resume=LABEL={S['label'][0]} "
        f"ip={S['ip'][0]}::{S['ip'][1]}:255.255.255.0:{S['host'][0]}:eth0:off "
        f"acme.token={S['token'][0]} {S['password'][2]} console=ttyS0,115200 "
        f"nvme_core.acme={S['url'][0]}",
        "proc/sys/kernel/hostname": S["host"][0],
        "proc/version": f"Linux version 6.8.0 ({S['user'][1]}@{S['host'][1]}) (gcc 12)",
        "proc/mounts": f"{S['host'][1]}:/export/{S['label'][1]} /home/{S['user'][0]} nfs "
        f"rw,addr={S['ip'][0]} 0 0\n/dev/disk/by-id/wwn-0x{S['wwn'][0]} /mnt/{S['label'][1]} ext4 "
        "rw 0 0\ntmpfs /dev/shm tmpfs rw,size=64m 0 0\n"
        f"//{S['ip'][1]}/x /media/y cifs rw,username={S['user'][2]},"
        f"password={S['password'][1]} 0 0",
        "proc/swaps": f"Filename Type Size Used Priority\n/dev/disk/by-label/{S['label'][0]} "
        "partition 8 0 -2",
        "proc/self/cgroup": f"0::/user.slice/user-{S['user'][0]}.slice/session-3.scope",
        f"sys/fs/cgroup/kubepods.slice/kubepods-pod{S['uuid'][2]}.slice/cpuset.cpus.partition": (
            "isolated invalid (Parent is not a partition root)"
        ),
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu",
        f"sys/class/net/enx{S['mac'][1]}/mtu": "1500",
        "sys/class/dmi/id/product_name": f"Rack/X S/N: {S['serial'][3]}",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "unique_id 1650923000417\nsimd_count 0",
        "etc/default/irqbalance": f"# by {S['email'][0]}\nIRQBALANCE_BANNED_CPULIST=4-15\n"
        f"IRQBALANCE_ARGS=--policyscript=/home/{S['user'][0]}/p.sh",
        f"etc/tuned/{S['label'][1]}-variables.conf": f"# {S['email'][0]} {S['token'][0]}\n"
        f"isolated_cores=4-15\nowner={S['user'][2]}",
        "etc/tuned/active_profile": S["label"][1],
        "nvml/reading": json.dumps(
            {
                "available": True,
                "driver": "570.1",
                "gpus": [
                    {
                        "index": 0,
                        "bdf": "00000000:C1:00.0",
                        "uuid": f"GPU-{S['uuid'][1]}",
                        "serial": S["serial"][1],
                    }
                ],
            }
        ),
        "derived/kernel_log": "\n".join(LOG),
        "derived/processes": json.dumps(PROCESS),
    }
    text = table["proc/interrupts"]
    assert isinstance(text, bytes)
    interrupts = text.decode().rstrip().replace("mlx5_comp0", f"mlx5@{S['host'][0]}", 1)
    put["proc/interrupts"] = interrupts.replace("mlx5_comp1", f"en-{S['mac'][0]}", 1)
    for path, value in put.items():
        table[path] = f"{value}\n".encode()
    table["sys/devices/pci0000:00/0000:00:09.0/nvme/nvme0/model"] = (
        f"ACME SSD serial {S['serial'][0]}\n".encode()
    )
    from nodeagent.discover.store import Link

    table["sys/class/nvme/nvme0"] = Link("/sys/devices/pci0000:00/0000:00:09.0/nvme/nvme0")
    return table


def all_secrets() -> list[str]:
    return [v for values in SECRETS.values() for v in values]


def kept(table: Table) -> dict[str, Entry]:
    root = Root(TableStore(table), live=False, label="test", keep=True)
    read_snapshot(root)
    assert root.kept is not None
    return root.kept


def without(text: str, secret: str) -> bool:
    low = text.lower()
    return secret.lower() not in low and secret.lower().replace("_", "-") not in low


def test_there_are_secrets_enough_and_they_are_read() -> None:
    """What is not read cannot leak; a test of that would prove nothing."""
    assert len(all_secrets()) >= 30 and len(SECRETS) >= 10
    plain = render(kept(planted()))
    never_read = {S["serial"][2]}
    for secret in set(all_secrets()) - never_read:
        assert secret in plain, secret


@pytest.mark.parametrize("include_logs", [False, True])
@pytest.mark.parametrize("key", [None, b"0123456789abcdef"])
def test_no_secret_leaves(include_logs: bool, key: bytes | None) -> None:
    text = render(redact(kept(planted()), Masks(key), include_logs=include_logs))
    for secret in all_secrets():
        if include_logs and secret == S["password"][2]:
            continue  # A bare word of the command line, which --include-logs keeps.
        assert without(text, secret), (secret, [x for x in text.splitlines() if secret in x])
    # What a judge needs is still there.
    for word in ("isolcpus=managed_irq,domain,4-15", "size=64m", "not a partition root",
                 "--tensor-parallel-size 8", "IRQBALANCE_BANNED_CPULIST=4-15", "Xid",
                 "isolated_cores=4-15"):  # fmt: skip
        assert word in text, word


def test_nothing_planted_stands_in_what_a_capture_is_judged_by(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "x.capture"
    file.write_text(render(redact(kept(planted()), Masks())))
    with Root.open(str(file)) as root:
        snapshot = read_snapshot(root)
    findings = judge(snapshot, Policy(), 0)
    said = msgspec.json.encode([topology_json(snapshot), findings, snapshot.texts]).decode()
    for secret in all_secrets():
        assert without(said, secret), secret
    by_id = {f.id: f for f in findings if f.id in ("cgroup.partition", "gpu.log")}
    assert by_id["cgroup.partition"].verdict == "FAIL"
    assert by_id["gpu.log"].verdict == "FAIL"


def test_a_capture_is_judged_as_the_machine() -> None:
    """The same findings, word by word, but for what is masked."""

    def findings(table: dict[str, Entry]) -> list[tuple[str, str]]:
        root = Root(TableStore(table, complete=True), live=False, label="test")
        return [(f.id, str(f.verdict)) for f in judge(read_snapshot(root), Policy(), 0)]

    plain = kept(planted())
    assert findings(redact(plain, Masks())) == findings(plain)


def test_redacting_twice_changes_nothing() -> None:
    once = redact(kept(planted()), Masks())
    assert redact(once, Masks()) == once


def test_equal_stays_equal_across_files() -> None:
    found = redact(kept(planted()), Masks(), include_logs=True)
    text = render(found)
    log = found["derived/kernel_log"]
    assert isinstance(log, bytes)
    host = found["proc/sys/kernel/hostname"]
    assert isinstance(host, bytes)
    assert host in log
    # A profile is called the same in its file's name.
    assert f"/etc/tuned/{found['etc/tuned/active_profile'].decode()}-variables.conf" in text  # type: ignore[union-attr]
    # A program that is killed twice is one.
    assert len(set(re.findall(rb"<program-\d+>", log))) <= log.count(b"<program-")
    group = re.search(r"(user-<path-\d+>)", text)
    assert group is not None


def test_a_key_makes_two_machines_comparable() -> None:
    key = b"0123456789abcdef"
    a = redact(kept(planted()), Masks(key))
    b = redact(kept(planted()), Masks(key))
    c = redact(kept(planted()), Masks(b"f" * 16))
    assert render(a) == render(b) != render(c)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("python3 -m vllm.entrypoints.openai.api_server --dtype auto",
         "python3 -m vllm.entrypoints.openai.api_server --dtype auto"),
        ("/usr/bin/vllm serve /models/secret -tp 4 --port=81",
         "vllm serve <value-1> -tp 4 --port=<value-2>"),
        ("VLLM::Worker_TP0", "VLLM::Worker_TP0"),
        ("acme-trader --config /x", "<program-1> --config <value-1>"),
        ("irqbalance --foreground --banirq=31", "irqbalance --foreground --banirq=31"),
        ("irqbalance --policyscript=/opt/acme/irq.sh",
         "irqbalance --policyscript=<value-1>"),
        ("llama-server -t 8 -b acme", "llama-server -t 8 -b <value-1>"),
        ("vllm serve x --dtype bfloat16 --max-model-len 32k --block-size acme",
         "vllm serve <value-1> --dtype bfloat16 --max-model-len 32k --block-size <value-2>"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_command_line_keeps_what_is_nobodys(title: str, expected: str) -> None:
    scrub = Scrubber(Masks())
    assert command(title, scrub) == expected
    assert command(expected, scrub) == expected


@pytest.mark.parametrize(
    "line",
    [
        "Memory cgroup stats for /slurm/uid_7/acme:",
        "Task in /docker/acme killed as a result of limit of /docker/acme",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=acme,mems_allowed=0-1,"
        "oom_memcg=/kubepods/acme,task_memcg=/kubepods/acme,task=acme,pid=7,uid=1",
        "traps: acme[7] general protection fault ip:7f sp:7f error:0 in acme.so[7f00+1000]",
        "EXT4-fs error (device dm-3): ext4_find_entry:1455: inode #2: comm acme: bad entry",
    ],
)
def test_what_people_named_leaves_no_kernel_log(line: str) -> None:
    table: Table = {kmsg.KEY: f"[    1.000000] {line}".encode()}
    (found,) = redact(table, Masks()).values()
    assert isinstance(found, bytes)
    assert b"acme" not in found
    assert klog.tells(found.decode()) == klog.tells(line)


def test_a_thread_that_its_owner_named_is_masked() -> None:
    threads = [{"tid": n, "comm": c, "cpus": "0"} for n, c in enumerate(("acme", "pt_main_thread"))]
    line = {
        "pid": 7, "role": "vllm", "comm": "acme", "title": "python3 -m vllm.entrypoints",
        "cgroup": "/", "thread_count": 2, "threads": threads,
    }  # fmt: skip
    (found,) = redact({engines.KEY: json.dumps(line).encode()}, Masks()).values()
    assert isinstance(found, bytes)
    assert b"acme" not in found and b"pt_main_thread" in found


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0",
        "0-55,112-167",
        "00000000,0000ffff,ffffffff",
        "mlx5_comp12@pci:0000:3b:00.0",
        "VLLM::EngineCore_DP0",
        "Node 0 MemTotal:       131580 kB",
        "IRQD_AFFINITY_MANAGED",
        "isolated invalid (Cpu list in cpuset.cpus not exclusive)",
        "pci0000:3a/0000:3a:00.0/0000:3b:00.0",
        "NVIDIA H100 80GB HBM3",
        "570.86.15",
        "2.5 GT/s PCIe",
    ],
)
def test_what_is_nobodys_stays(text: str) -> None:
    assert Scrubber(Masks(), ["gpu-07"], ["alice"]).free(text) == text


def test_every_argument_that_a_check_asks_for_keeps_its_value() -> None:
    from nodeagent.discover.redact_words import BOOT_ARGS

    source = pathlib.Path(__file__).parents[2] / "nodeagent" / "check"
    asked = {
        name
        for file in source.glob("*.py")
        for name in re.findall(r"\.arg\(\s*\"([^\"]+)\"", file.read_text())
    }
    assert len(asked) > 5
    assert [n for n in sorted(asked) if not BOOT_ARGS.fullmatch(n)] == []


def test_a_capture_file_is_read_back(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "x.capture"
    table = redact(kept(planted()), Masks())
    file.write_text(render(table))
    assert open_archive(str(file)).names("derived")
