"""What files of a unit set: found in every folder that a name has, added up as systemd does."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.pin.unitfiles import MAX_BYTES, drop_ins, names, setting


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("a.service", ("a.service", "service")),
        (
            "foo-bar-baz.service",
            ("foo-bar-baz.service", "foo-bar-.service", "foo-.service", "service"),
        ),
        ("index@0.service", ("index@0.service", "index@.service", "service")),
        ("run-u7.scope", ("run-u7.scope", "run-.scope", "scope")),
        ("a-b@x-y.service", ("a-b@x-y.service", "a-b@.service", "a-.service", "service")),
    ],
)
def test_the_folders_of_a_name(unit: str, expected: tuple[str, ...]) -> None:
    assert names(unit) == expected


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_drop_ins_of_every_folder_are_found_in_the_order_of_their_names(tmp_path: Path) -> None:
    one, other = tmp_path / "etc", tmp_path / "usr"
    expected = [
        write(other / "service.d/10-all.conf", ""),
        write(one / "foo-.service.d/50-x.conf", ""),
        write(other / "foo-bar.service.d/50-y.conf", ""),
        write(one / "foo-bar.service.d/90-z.conf", ""),
    ]
    write(one / "foo-bar.service.d/README", "")
    write(one / "fo-.service.d/10-other.conf", "")
    write(other / "foo-.service.d/90-z.conf", "the other one of that name wins")
    told = write(tmp_path / "generator/foo-bar.service.d/20-told.conf", "")
    expected.insert(1, told)
    assert drop_ins("foo-bar.service", [told, expected[1]], (one, other)) == expected
    assert drop_ins("foo-bar.service", [], (tmp_path / "none",)) == []


@pytest.mark.parametrize(
    ("texts", "ids", "text"),
    [
        (["[Service]\nAllowedCPUs=0-1\n"], "0-1", "0-1"),
        (["AllowedCPUs=0 2\n  AllowedCPUs = 4,6-7\n"], "0,2,4,6-7", "0,2,4,6-7"),
        (["AllowedCPUs=0-1\n", "AllowedCPUs=3\n"], "0-1,3", "0-1,3"),
        (["AllowedCPUs=0-1\n", "AllowedCPUs=\nAllowedCPUs=3\n"], "3", "3"),
        (["AllowedCPUs=0-1\n", "AllowedCPUs=\n"], "", ""),
        (["AllowedCPUs=%i\n"], "", "%i"),
        (["AllowedCPUs=%i\n", "AllowedCPUs=\nAllowedCPUs=1\n"], "1", "1"),
        (["# AllowedCPUs=1\nStartupAllowedCPUs=2\n;AllowedCPUs=3\nXAllowedCPUs=4\n"], None, ""),
        (["x" * MAX_BYTES + "\nAllowedCPUs=1\n"], None, ""),
        ([], None, ""),
    ],
)
def test_lines_add_and_an_empty_one_takes_all_back(
    texts: list[str], ids: str | None, text: str, tmp_path: Path
) -> None:
    files = [write(tmp_path / f"{at}.conf", each) for at, each in enumerate(texts)]
    found = setting("AllowedCPUs", [*files, tmp_path / "gone.conf"])
    if ids is None:
        assert found is None
    else:
        assert found is not None and found.path == files[-1] and found.text == text
        assert str(found.ids or "") == ids
