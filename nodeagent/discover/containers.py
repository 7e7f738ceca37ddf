"""What a container's runtime says of it: name, image, labels. Read from the runtime's own files.

The id comes off the cgroup path (model/cgroup.py). Files of the runtimes are root's: without that
right the names stay unknown, and `reason` says so. Nothing is asked over a runtime's socket: the
labels of a Podman before 5, whose database is not SQLite, are asked of `podman inspect`, and only
where a workload matches by label.

Source: moby daemon container.config.v2.json; containers/storage container.go (containers.json);
podman libpod/sqlite_state_internal.go;
cri-o and containerd internal/cri annotations in the bundle's config.json; podman-inspect(1).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from nodeagent.discover.root import Root
from nodeagent.errors import visible
from nodeagent.model.cgroup import Container, container_of

MAX_KNOWN = 4096
"""Containers remembered; more are looked up again each time."""
MAX_TRIES = 3
"""Looks at a container whose files said nothing: it may just have been made."""
MAX_FILE = 4 << 20
MAX_LABELS = 256
INSPECT_DEADLINE_S = 3.0
ROOTS_STORE = "var/lib/containers/storage"
MAX_DATABASE = 32 << 20
"""Of a user's own Podman; root's is not copied."""
QUERY_S = 0.25
QUERY_STEPS = 10_000
"""Of SQLite's machine, between two looks at the clock."""
STORES = ("overlay", "vfs", "btrfs", "zfs")
"""Storage drivers of Podman and CRI-O: each has a folder DRIVER-containers."""
NAMESPACES = ("k8s.io", "default", "moby", "nerdctl")
"""Of containerd."""
_USER = re.compile(r"/user-(\d{1,9})\.slice/")


_parsed = functools.lru_cache(MAX_KNOWN)(container_of)


class Containers:
    """Containers by their cgroup; each is looked up once. `reason` says why facts are missing."""

    def __init__(self, root: Root, *, labels: bool = False) -> None:
        self._root = root
        self._labels = labels
        self._known: dict[str, Container] = {}
        self._tries: dict[str, int] = {}
        self.reason = ""

    def of(self, cgroup: str) -> Container | None:
        """The container of a process in that cgroup; None: it is in none."""
        found = _parsed(cgroup)
        if found is None:
            return None
        known = self._known.get(found.id)
        if known is not None and known.cgroup == found.cgroup:
            return known
        tries = self._tries.get(found.id, 0)
        if tries >= MAX_TRIES:
            return found
        told = self._facts(found)
        if len(self._known) < MAX_KNOWN and len(self._tries) < MAX_KNOWN:
            self._tries[found.id] = tries + 1
            if told.name is not None:
                self._known[found.id] = told
        return told

    def forget(self, alive: frozenset[str]) -> None:
        """Drops what is remembered of containers whose id is not among these."""
        self._known = {i: c for i, c in self._known.items() if i in alive}
        self._tries = {i: n for i, n in self._tries.items() if i in alive}

    def _facts(self, found: Container) -> Container:
        if found.runtime in ("lxc", "nspawn"):
            return dataclasses.replace(found, name=found.id)
        told = self._docker(found) or self._storage(found) or self._bundle(found)
        if told is None:
            self.reason = (
                f"container {found.id[:12]}: its runtime's files were not found, or may not be "
                "read without root"
            )
            return found
        if told.runtime == "podman" and not told.labels and self._labels and self._root.is_live:
            return self._inspected(told)
        return told

    def _docker(self, found: Container) -> Container | None:
        data = self._read(f"var/lib/docker/containers/{found.id}/config.v2.json")
        return None if data is None else docker_facts(found, data)

    def _storage(self, found: Container) -> Container | None:
        """Podman's and CRI-O's: containers.json names all of a store, config.json one; what Podman
        5 knows stands in its database."""
        if self._root.is_live:
            for top in self._tops(found):
                row = read_database(f"/{top}/db.sql", found.id, hostile=top != ROOTS_STORE)
                if row is not None:
                    return database_facts(found, row)
        for store in (f"{t}/{d}-containers" for t in self._tops(found) for d in STORES):
            listed = self._read(f"{store}/containers.json")
            told = None if listed is None else storage_facts(found, listed)
            if told is not None:
                config = self._read(f"{store}/{found.id}/userdata/config.json")
                return told if config is None else bundle_facts(told, config)
        return None

    def _tops(self, found: Container) -> list[str]:
        """Where the stores of root and of the container's user are."""
        tops = [ROOTS_STORE]
        user = _USER.search(found.cgroup)
        home = self._home(user[1]) if user is not None else ""
        if home:
            tops.insert(0, f"{home}/.local/share/containers/storage")
        return tops

    def _home(self, uid: str) -> str:
        """A user's home without its first slash, by /etc/passwd: a directory service could keep
        the turn waiting. "": not told there."""
        data = self._root.peek("etc/passwd", MAX_FILE) or b""
        for line in data.decode("utf-8", "replace").splitlines():
            words = line.split(":")
            if len(words) == 7 and words[2] == uid:
                return words[5].strip("/")
        return ""

    def _bundle(self, found: Container) -> Container | None:
        for space in NAMESPACES:
            top = f"run/containerd/io.containerd.runtime.v2.task/{space}/{found.id}"
            data = self._read(f"{top}/config.json")
            if data is not None:
                return bundle_facts(found, data)
        return None

    def _read(self, path: str) -> bytes | None:
        return self._root.peek(path, MAX_FILE)

    def _inspected(self, told: Container) -> Container:
        """With its labels, from Podman's database. A user's own Podman is asked as that user."""
        user = _USER.search(told.cgroup)
        command = ["podman", "container", "inspect", told.id]
        if user is not None:
            self.reason = (
                f"container {told.name}: labels of rootless Podman are in user {user[1]}'s "
                "database, which is not read"
            )
            return told
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=INSPECT_DEADLINE_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = (
                f"{error.strerror}"
                if isinstance(error, OSError)
                else f"no answer in {INSPECT_DEADLINE_S:g} s"
            )
            self.reason = f"container {told.name}: podman inspect: {said}"
            return told
        if done.returncode:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            self.reason = f"container {told.name}: podman inspect: {visible(last[:200])}"
            return told
        return inspect_facts(told, done.stdout)


def read_database(path: str, number: str, *, hostile: bool = False) -> bytes | None:
    """What Podman (5, and 4.8 where it was told so) keeps of one container; None: nothing, or no
    right. Opened to read only; where that would have to write or to wait, as a file nobody
    changes.

    `hostile`: it is another user's, who may put there a FIFO, or a view that never ends. It is read
    as bytes then, and SQLite never opens a path.
    """
    if hostile:
        data = _plain_file(path)
        return None if data is None else _row(functools.partial(_in_memory, data), number)
    for how in ("mode=ro", "mode=ro&immutable=1"):
        uri = f"file:{quote(path)}?{how}"
        row = _row(functools.partial(sqlite3.connect, uri, uri=True, timeout=0.0), number)
        if row is not None:
            return row
    return None


def _plain_file(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > MAX_DATABASE:
            return None
        try:
            return file.read(MAX_DATABASE)
        except OSError:
            return None


def _in_memory(data: bytes) -> sqlite3.Connection:
    # Source: sqlite.org/fileformat.html 1.3.3: 2 is a write-ahead log, which memory has not.
    if data[18:20] == b"\2\2":
        data = data[:18] + b"\1\1" + data[20:]
    base = sqlite3.connect(":memory:")
    if not hasattr(base, "deserialize"):
        base.close()
        raise sqlite3.NotSupportedError("this SQLite was built without deserialize")
    base.deserialize(data)
    return base


def _row(connect: Callable[[], sqlite3.Connection], number: str) -> bytes | None:
    """Within bounds of time and length: what is named a table there may be anything."""
    end = time.monotonic() + QUERY_S
    try:
        with contextlib.closing(connect()) as base:
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_FILE)
            base.set_progress_handler(lambda: time.monotonic() > end, QUERY_STEPS)
            row = base.execute(
                "SELECT JSON FROM ContainerConfig WHERE ID = ?", (number,)
            ).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None or not isinstance(row[0], str) else row[0].encode()


# ---- what the files say: pure --------------------------------------------------------------------


class _DockerSettings(msgspec.Struct, rename="pascal"):
    image: str = ""
    labels: dict[str, str] | None = None


class _Docker(msgspec.Struct, rename="pascal"):
    name: str = ""
    config: _DockerSettings | None = None


class _Stored(msgspec.Struct):
    id: str
    names: list[str] = []
    metadata: str = ""


class _Metadata(msgspec.Struct, rename="kebab"):
    image_name: str = ""
    name: str = ""


class _Bundle(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _InspectedConfig(msgspec.Struct, rename="pascal"):
    labels: dict[str, str] | None = None


class _Inspected(msgspec.Struct, rename="pascal"):
    config: _InspectedConfig | None = None


def docker_facts(found: Container, data: bytes) -> Container | None:
    """Out of config.v2.json; None: it is none."""
    try:
        told = msgspec.json.decode(data, type=_Docker)
    except (msgspec.DecodeError, RecursionError):
        return None
    settings = told.config or _DockerSettings()
    return _with(
        found,
        runtime="docker",
        name=told.name.lstrip("/"),
        image=settings.image,
        labels=settings.labels or {},
    )


class _Kept(msgspec.Struct):
    name: str = ""
    rootfsImageName: str = ""  # noqa: N815
    labels: dict[str, str] | None = None


def database_facts(found: Container, data: bytes) -> Container | None:
    """Out of the JSON of Podman's database (libpod ContainerConfig)."""
    try:
        told = msgspec.json.decode(data, type=_Kept)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _with(
        found,
        runtime="podman",
        name=told.name,
        image=told.rootfsImageName,
        labels=told.labels or {},
    )


def storage_facts(found: Container, data: bytes) -> Container | None:
    """Out of containers.json; None: the container is not in it."""
    try:
        told = msgspec.json.decode(data, type=list[_Stored])
        one = next((c for c in told if c.id == found.id), None)
        if one is None:
            return None
        more = msgspec.json.decode(one.metadata or "{}", type=_Metadata)
    except (msgspec.DecodeError, RecursionError):
        return None
    name = more.name or next(iter(one.names), "")
    return _with(found, runtime=found.runtime, name=name, image=more.image_name, labels={})


def bundle_facts(found: Container, data: bytes) -> Container:
    """With what the annotations of an OCI bundle add: Kubernetes's names, as labels that a kubelet
    gives too."""
    try:
        notes = msgspec.json.decode(data, type=_Bundle).annotations or {}
    except (msgspec.DecodeError, RecursionError):
        return found
    labels = dict(found.labels)
    coded = notes.get("io.kubernetes.cri-o.Labels", "")
    if coded:
        try:
            labels |= msgspec.json.decode(coded, type=dict[str, str])
        except (msgspec.DecodeError, RecursionError):
            labels = dict(found.labels)
    for label, names in _KUBERNETES.items():
        told = next((notes[n] for n in names if notes.get(n)), None)
        if told is not None:
            labels.setdefault(label, told)
    image = next((notes[n] for n in _IMAGES if notes.get(n)), None)
    return _with(
        found,
        runtime=found.runtime,
        name=labels.get("io.kubernetes.container.name") or found.name or "",
        image=image or found.image or "",
        labels=labels,
    )


_KUBERNETES = {
    "io.kubernetes.container.name": (
        "io.kubernetes.cri.container-name",
        "io.kubernetes.container.name",
    ),
    "io.kubernetes.pod.name": ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    "io.kubernetes.pod.namespace": (
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.pod.namespace",
    ),
    "io.kubernetes.pod.uid": ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
}
_IMAGES = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName")


def inspect_facts(found: Container, data: bytes) -> Container:
    """With the labels that `podman container inspect` printed."""
    try:
        told = msgspec.json.decode(data, type=list[_Inspected])
    except (msgspec.DecodeError, RecursionError):
        return found
    config = told[0].config if told else None
    labels = config.labels if config is not None else None
    return _with(
        found,
        runtime=found.runtime,
        name=found.name or "",
        image=found.image or "",
        labels={**dict(found.labels), **(labels or {})},
    )


def _with(
    found: Container, *, runtime: str, name: str, image: str, labels: dict[str, str]
) -> Container:
    return dataclasses.replace(
        found,
        runtime=runtime,
        name=name or None,
        image=image or None,
        labels=tuple(sorted(labels.items())[:MAX_LABELS]),
    )
