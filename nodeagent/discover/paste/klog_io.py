"""Lines of NICs, drives, file systems and software RAID.

Source: Linux drivers/net/ethernet/mellanox/mlx5/core, net/sched/sch_generic.c, drivers/nvme/host,
block/blk-core.c, fs/buffer.c, fs/ext4/super.c, fs/xfs, fs/btrfs, drivers/md.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.klog_rule import BDF, Topic, benign, groups, rule

_MLX5 = r"\A(?>.*?(?<!\w)mlx5).*?"
"""From the driver's first name on: from each of its names, time would grow by their square."""

NIC = Topic(
    re.compile(r"mlx5|[Ll]ink|NETDEV|(?i:tx)[ _]timeout"),
    (
        rule("nic_power", _MLX5 + r"insufficient power on the PCIe slot"),
        rule("nic_thermal", _MLX5 + r"high temperature", flags=re.IGNORECASE),
        rule("nic_module", _MLX5 + r"Port module event\[error\]"),
        rule(
            "nic_fw",
            r"mlx5_cmd_(?:out_err|check)\b.*failed|"
            rf"{_MLX5}(?:timeout\. Will cause a leak"
            r"|firmware internal error|health compromised|[Ff]atal error (?:\d+ )?detected"
            r"|fw_fatal|cmd_status_err.*failed"
            r"|print_health_info:|No done completion|health recovery flow aborted"
            r"|handing over device|cmd_work_handler.*failed|wait_fw_init.*timeout"
            r"|Firmware over \d+ MS in pre|mlx5_function_setup.*failed|assert_var\["
            r"|health recovery failed)",
        ),
        rule("nic_tx_timeout", r"NETDEV WATCHDOG: .*transmit queue \d+ timed out"),
        rule("nic_tx_timeout", rf"{BDF} \S+: tx_timeout: VSI"),
        rule("nic_tx_timeout", _MLX5 + r"TX timeout (?:detected|on queue)"),
        rule(
            "nic_link",
            rf"(?P<bdf>{BDF})(?: (?P<device>[\w.-]+))?: (?:NIC )?[Ll]ink (?:is )?[Dd]own",
            fault=None,
            details=groups,
            bdf="bdf",
        ),
        rule(
            "nic_link",
            r"(?<![\w:.-])(?P<device>[a-z][\w.-]{1,15}): (?:NIC )?[Ll]ink (?:is )?[Dd]own",
            fault=None,
            details=groups,
        ),
        rule(
            "nic_link",
            r"\(slave (?P<device>[\w.-]+)\): link status (?:definitely )?down",
            fault=None,
            details=groups,
        ),
    ),
)

NVME = Topic(
    re.compile(r"nvme"),
    (
        rule(
            "nvme_timeout",
            r"nvme (?P<device>nvme\d+): (?:I/O .*\btimeout\b|I/O timeout|controller is down; will "
            r"reset|Abort status:|frozen state error|.*resetting controller|Admin Cmd.*timeout)",
            details=groups,
        ),
        rule(
            "nvme_dead",
            r"nvme (?P<device>nvme\d+): (?:Disabling device after reset failure"
            r"|Removing after probe failure|Device not ready; aborting|.*[Cc]ontroller is dead"
            r"|Could not set queue count|.*identify controller failed)",
            details=groups,
            flags=re.IGNORECASE,
        ),
        rule("nvme_dead", rf"nvme: probe of (?P<bdf>{BDF}) failed", bdf="bdf"),
        rule(
            "nvme_no_path",
            r"(?P<device>nvme\w+): no (?:available|usable) path|(?:no path available)",
            details=groups,
        ),
        rule(
            "io_error",
            r"(?P<device>nvme\w+): .*(?:I/O Error|Data Integrity|Unrecovered (?:Read|Write)|"
            r"Media|Write Fault|Internal) ?.*\(sct 0x\w+ / sc 0x\w+\)",
            details=groups,
        ),
    ),
)

BLOCK = Topic(
    re.compile(
        r"error|Error|ERROR|Emask|failed command|beyond end|limit=|EXT4|EXT[23]|XFS"
        r"|BTRFS|JBD2|[Jj]ournal|F2FS|SQUASHFS|[Rr]ead.?only|FAILED"
    ),
    (
        rule(
            "io_error",
            r"[Bb]uffer I/O error on dev(?:ice)? (?P<device>[^\s,]+)",
            details=groups,
        ),
        rule(
            "io_error",
            r"(?:I/O|critical (?:target|medium|nexus|space allocation)|protection|timeout|"
            r"recoverable transport|(?:kernel|device) resource|reservation conflict) error, dev "
            r"(?P<device>[^\s,]+)",
            details=groups,
        ),
        rule("io_error", r"I/O error on (?:dev(?:ice)? )?(?P<device>[\w.-]+)", details=groups),
        rule(
            "io_error",
            r"\[(?P<device>sd[a-z]+)\].*(?:FAILED Result: (?!hostbyte=DID_OK driverbyte=DRIVER_OK)|"
            r"Sense Key : (?:Medium|Hardware) Error|Unrecovered (?:read|write) error)",
            details=groups,
        ),
        rule(
            "io_error",
            r"\b(?P<device>ata\d+(?:\.\d+)?): (?:failed command|exception Emask|"
            r"error: \{ UNC)",
            details=groups,
        ),
        benign(
            r"(?:EXT4-fs|XFS|BTRFS)(?: info)? ?\([^)]*\):? (?:re-?mounted|mounted filesystem|"
            r"Mounting|Ending clean mount|[Uu]nmounting|recovery complete|orphan cleanup"
            r"|bdev \S+ errs: wr 0, rd 0, flush 0, corrupt 0, gen 0)"
        ),
        rule(
            "fs_error",
            r"\A(?=.*(?i:err|only|corrupt|shut|fail|mount|superb|lost|discard|retry)).*?"
            r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs|FAT-fs|JFS)(?: error| warning| critical| alert"
            r"| info)? ?\((?:device )?(?P<device>[^)\s:]+)[^)]*\):? .*(?:I/O [Ee]rror"
            r"|read-?only(?! f)|[Cc]orrupt|[Ss]hut(?:ting)? ?down|force_shutdown|[Ee]rror|failed:? "
            r"|Please unmount|[Uu]nmount and run|unable to read superblock|Data will be lost"
            r"|\berr -\d+|page discard on page|Failing async write|Retrying async write)",
            details=groups,
        ),
        rule("fs_error", r"EXT[234]-fs error \(device (?P<device>[^)\s:]+)", details=groups),
        rule("fs_error", r"BTRFS: error \(device (?P<device>[^)\s:]+)", details=groups),
        rule("fs_error", r"Aborting journal on device (?P<device>[^\s.]+)", details=groups),
        rule(
            "fs_error",
            r"\A(?>.*?JBD2: )(?>.*?\b[Ee]rrors?\b).*(?:for|on) (?P<device>[\w-]+)",
            details=groups,
        ),
        rule("fs_error", r"SQUASHFS error: "),
        rule("fs_error", r"(?:\A|[\s:])Remounting filesystem read-only"),
        rule("io_error", r"attempt to access beyond end of device"),
        rule(
            "io_error",
            r"(?<![\w-])(?P<device>[a-z][\w-]*): rw=\d+, (?:want|sector)=\d+,.* limit=\d+",
            details=groups,
        ),
    ),
)

RAID = Topic(
    re.compile(r"\bmd[:/]|raid|mdadm"),
    (
        rule("raid", r"raid\S*: Disk failure on (?P<device>[^\s,]+)", details=groups),
        rule("raid", r"md: kicking non-fresh (?P<device>\S+) from array", details=groups),
        rule(
            "raid",
            r"md/raid\S*: (?P<device>\w+): (?:rescheduling sector|unrecoverable|redirecting)",
            details=groups,
        ),
        rule(
            "raid",
            r"md/raid\S*: .*read error (?:not corrected|NOT corrected|not correctable).*on "
            r"(?P<device>\w+)",
            details=groups,
        ),
        rule(
            "raid",
            r"md/raid\S*: (?:Operation continuing on|Cannot continue operation|not enough|"
            r"too few disks|failed to run|active with (?P<have>\d+) out of (?!(?P=have)\b)\d+)",
        ),
        rule(
            "raid",
            r"\A(?>.*?mdadm).*?\b(?:Fail|DegradedArray|FailSpare|DeviceDisappeared)\b.*event",
            flags=re.IGNORECASE,
        ),
        rule("raid", r"md: super_written gets error"),
    ),
)
