"""The committed generated code is what `script/proto` makes of proto/, and keeps its rules."""

from __future__ import annotations

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = sorted((ROOT / "proto/nodeagent/api/v1").glob("*.proto"))


def test_generated_code_is_that_of_the_sources(tmp_path: pathlib.Path) -> None:
    subprocess.run([ROOT / "script/proto", tmp_path], check=True, capture_output=True)
    made = {p.name: p.read_text() for p in (tmp_path / "nodeagent/api/v1").glob("*.py")}
    kept = {p.name: p.read_text() for p in (ROOT / "nodeagent/api/v1").glob("*.py")}
    assert made == kept


def test_every_message_keeps_room_and_no_number_is_used_twice() -> None:
    for path in PROTO:
        for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", path.read_text(), re.M | re.S):
            assert "reserved 1000 to 1099;" in body, f"{path.name}: {name}"
            numbers = re.findall(r" = (\d+);", body)
            assert len(numbers) == len(set(numbers)), f"{path.name}: {name}"


def test_nothing_the_controller_sends_is_a_command() -> None:
    text = (ROOT / "proto/nodeagent/api/v1/controller.proto").read_text()
    (body,) = re.findall(r"^message ReportResponse \{\n(.*?)^\}", text, re.M | re.S)
    assert re.findall(r"^    (\w+) \w+ = ", body, re.M) == ["HelloAck", "Ack", "AliveQuestion"]
