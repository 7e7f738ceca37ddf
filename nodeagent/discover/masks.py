"""What tells whose machine it is, wherever it stands in a text, and the masks that replace it.

Equal stays equal within a capture: `<ip-1>` is the same address everywhere in it. With a key the
mask is an HMAC of the value, so that captures made with the same key can be compared.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable

_UUID = r"[0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12}(?![0-9a-fA-F])"
_BYTE = "[0-9a-fA-F]{2}"
_MAC = (
    # Also InfiniBand's 20 bytes, and 8 of an EUI-64.
    rf"(?<![0-9a-fA-F:])(?:{_BYTE}:){{5}}(?:(?:{_BYTE}:){{14}}|(?:{_BYTE}:){{2}})?{_BYTE}"
    rf"(?![0-9a-fA-F:])|(?<![\w-])(?:{_BYTE}-){{5}}{_BYTE}(?![\w-])"
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"(?<![\d.]){_OCTET}(?:\.{_OCTET}){{3}}(?![\d.])"
_GROUP = r"[0-9a-fA-F]{1,4}"
_IPV6 = (
    rf"(?<![\w:.])(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}(?::{_GROUP}){{1,6}}|"
    rf"(?:{_GROUP}:){{2,7}}:|::{_GROUP}(?::{_GROUP})*)(?![\w:.])"
)
ANYWHERE = re.compile(
    rf"(?P<uuid>{_UUID})|(?P<mac>{_MAC}|"
    r"(?<![\w.])[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}(?![\w.]))|"
    r"(?P<enx>(?<=[ew][nlw]x)[0-9a-f]{12})|"
    r"(?P<guid>(?<![\w:])(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}(?![\w:]))|"
    rf"(?P<ip>{_IPV4}|{_IPV6})"
)
"""Addresses: in paths, in links, in every file."""

_KEPT_IPS = ("0.0.0.0", "127.0.0.1", "::1", "255.255.255.255")
_SECRET_NAME = (
    r"(?:api|access|private|secret|auth|encryption|license|session)[_-]?key|[\w.-]*[._-]key|[\w-]*token|"
    r"[\w-]*secret|pass(?:word|wd|phrase|code)?|[\w-]*password|pwd|credentials?|cookie"
)
_LONG = r"(?=[\w+/-]*[0-9])(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])"
TEXT = re.compile(
    # In the order in which a place is tried: the whole before its parts.
    r"(?P<url>\b[a-zA-Z][\w+.-]{1,20}://[^\s\"'<>]+)|"
    r"(?P<email>(?<![\w.+%-])[\w.+%-]{1,64}@[\w-]+(?:\.[\w-]+)*\.[a-zA-Z]{2,24}(?![\w-]))|"
    rf"(?P<secret>(?i:(?<![a-zA-Z0-9-])(?:{_SECRET_NAME})[\"']?\s*[=:]\s*|\bbearer\s+|"
    r"\bbasic\s+(?=[\w+/=]{8,}))"
    r"(?P<secret_value>\"[^\"]*\"|'[^']*'|[^\s,;&\"'<>]+))|"
    r"(?P<key>\b(?:sk|pk|rk|hf|gh[oprsu]|github_pat|glpat|nvapi|xox[abeoprs]|npm|pypi|dop_v1|ya29)"
    r"[-_.][\w.-]{10,}|\b(?:AKIA|ASIA|AROA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|"
    r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]+)?|\bAAAA[BEC][\w+/=]{30,}|"
    rf"(?<![\w+/.:-]){_LONG}[A-Za-z0-9+_]{{32,}}={{0,2}}(?![\w+/=]))|"
    r"(?P<wwn>(?i:\b(?:naa|eui|wwn|wwid|t10)[.:-](?:0x)?[\w.:-]{6,}|"
    r"\b(?:nqn|iqn)\.\d{4}-\d\d\.[\w.:-]+)|"
    r"(?<![\w.])(?:0x)?[256][0-9a-fA-F]{15}(?![\w.]))|"
    r"(?P<serial>(?i:(?<![a-zA-Z])(?:serial(?:[ _-]?(?:number|no\.?|num|short))?|s/n|sn|unique_id|"
    r"asset[ _-]?tag|chassis)[\"']?\s*[=:#]?\s*[\"']?)"
    r"(?P<serial_value>(?=[\w./-]*\d)[\w./-]{5,}))|"
    r"(?P<guid>(?i:\b(?:guid|wwpn|wwnn|gid|lid)\b\W{0,4}(?:0x)?)"
    r"(?P<guid_value>[0-9a-fA-F][0-9a-fA-F:]{7,}))|"
    r"(?P<label>(?i:\b(?:part)?(?:label|uuid)=)(?P<label_value>\"[^\"]*\"|[^\s,;\"<>]+))|"
    r"(?P<host>\bip-\d{1,3}(?:-\d{1,3}){3}(?:\.[\w.-]+)?|"
    r"(?<![\w.@/-])(?:[a-zA-Z0-9-]+\.)+(?:com|net|org|edu|gov|local|internal|lan|corp|intra|"
    r"example|cloud)(?![\w.-]))|"
    r"(?P<hex>(?<![\w.])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{32,64}(?![\w.]))"
)
"""Secrets in free text: the kernel log, command lines, mounts, names of interrupts."""


MASK = re.compile(r"<[a-z]+-[0-9a-f]+>")


class Masks:
    """Gives each value its mask, and counts what it masked."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self._known: dict[tuple[str, str], str] = {}
        self._numbers: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Values masked, by kind, each occurrence."""

    def of(self, kind: str, value: str) -> str:
        """The value's mask: `<kind-N>`, or with a key `<kind-HEX>`."""
        if MASK.fullmatch(value):
            # A capture of a capture has its masks already.
            return value
        self.counts[kind] += 1
        value = value.lower()
        known = self._known.get((kind, value))
        if known is None:
            if self._key is None:
                self._numbers[kind] += 1
                name = str(self._numbers[kind])
            else:
                name = hmac.new(self._key, f"{kind}\0{value}".encode(), hashlib.sha256).hexdigest()[
                    :12
                ]
            known = self._known[kind, value] = f"<{kind}-{name}>"
        return known


class Scrubber:
    """Replaces what tells whose machine it is. `hosts` and `users` are names to look for."""

    def __init__(self, masks: Masks, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self.masks = masks
        self._hosts = _words(hosts)
        self._users = _words(users)
        # A name such as gpu-07 is nobody else's word; "vm" or "node" is.
        telling = [h for h in hosts if len(h) >= 5 and re.search(r"[\d.-]", h)]
        self._telling = _words(telling, r"(?<![0-9A-Za-z<])", "(?![0-9A-Za-z])")

    def addresses(self, text: str) -> str:
        """Without addresses, and without a host's name that is no common word: for any text."""
        if self._telling is not None:
            text = self._telling.sub(lambda m: self.masks.of("host", m[0]), text)
        if "-" not in text and ":" not in text and "." not in text and "_" not in text:
            return text if "x" not in text else ANYWHERE.sub(self._address, text)
        return ANYWHERE.sub(self._address, text)

    def _address(self, m: re.Match[str]) -> str:
        kind = m.lastgroup or "mac"
        if kind == "ip" and m[0] in _KEPT_IPS:
            return m[0]
        if kind in ("mac", "enx"):
            return self.masks.of("mac", re.sub("[:.-]", "", m[0]))
        if kind == "uuid":
            return self.masks.of("uuid", m[0].replace("_", "-"))
        return self.masks.of(kind, m[0])

    def free(self, text: str) -> str:
        """Without secrets of any kind: for text that people and programs wrote."""
        return self.addresses(self.names(TEXT.sub(self._secret, text)))

    def names(self, text: str) -> str:
        """Without the names of hosts and users that are known."""
        text = re.sub(r"(?<=/home/)[^/\s<\"',]+", lambda m: self.masks.of("user", m[0]), text)
        if self._hosts is not None:
            text = self._hosts.sub(lambda m: self.masks.of("host", m[0]), text)
        if self._users is not None:
            text = self._users.sub(lambda m: self.masks.of("user", m[0]), text)
        return text

    def _secret(self, m: re.Match[str]) -> str:
        for kind in ("secret", "serial", "guid", "label"):
            value = m[f"{kind}_value"]
            if value is not None:
                if value.startswith("<"):
                    return m[0]
                head = m[0][: m.start(f"{kind}_value") - m.start()]
                return head + self.masks.of(kind, value.strip("\"'"))
        kind = next(k for k in ("url", "email", "key", "wwn", "host", "hex") if m[k] is not None)
        return self.masks.of("value" if kind == "hex" else kind, m[0])


def _words(
    names: Iterable[str], before: str = r"(?<![\w.<-])", after: str = r"(?![\w-])"
) -> re.Pattern[str] | None:
    wanted = sorted({n for n in names if n}, key=lambda n: (-len(n), n))
    if not wanted:
        return None
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, wanted))}){after}", re.IGNORECASE)
