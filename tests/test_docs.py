"""The documents: links lead somewhere, quoted commands parse, nothing is an orphan, and nothing of
a build machine is in the repository."""

from __future__ import annotations

import html.parser
import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator

import click
import pytest

from nodeagent.cli.main import cli

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tracked() -> list[pathlib.Path]:
    """Files of the repository; the tree itself where this is no checkout."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("this is not a git checkout: which files are the repository's is not known")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("ansible/*.md")])


def named(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """Without fenced code and code spans, in which brackets are no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page: pathlib.Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text()))


def anchors(page: pathlib.Path) -> set[str]:
    """As code forges make them: lower case, blanks to hyphens, other marks away."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+?)\s*$", text, re.M)
    return {
        re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).replace(" ", "-") for h in heads
    } | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{named(page)}: no heading for {link}"


def test_every_document_can_be_reached() -> None:
    seen: set[pathlib.Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        if page.suffix == ".md":
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    pictures = {".md", ".svg", ".png"}
    there = {p for p in (ROOT / "docs").rglob("*") if p.suffix in pictures}
    assert sorted(map(named, there - seen)) == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    numbered = sorted(p.name for p in folder.glob("[0-9]*.md"))
    assert numbered == sorted(link for link in links(folder / "README.md") if link[0].isdigit())
    assert [n[:4] for n in numbered] == [f"{i + 1:04}" for i in range(len(numbered))]


PLACEHOLDER = {"ID": "isolation.in-force", "PORT": "26400", "SECONDS": "1", "N": "1", "SEQ": "1"}
SHELL = ("|", ">", "<", "&&", ";", "&", "2>", ">>")


def quoted(text: str) -> Iterator[str]:
    """Every `nodeagentctl ...` of code spans and code blocks, up to a pipe or a comment."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line for b in blocks for line in re.sub(r"\\\n", " ", b).splitlines()]
    for piece in (*spans, *lines):
        for part in re.split(r"\s&&\s|\$\(", piece.replace("\\|", "|")):
            at = re.search(r"(?:^|\|\s*|\s|\")(nodeagentctl\s.*)", part)
            # In a sentence in a code block, such as a systemd line, it is not called.
            if at and not re.match(r"\s*[\w-]+ (?:is|has)\b", at[1]):
                yield at[1]


def words(line: str) -> list[str]:
    """The arguments, without what the shell takes."""
    found: list[str] = []
    for word in shlex.split(re.split(r"\s#|\s\(", line)[0].replace(')"', "").rstrip('")')):
        if word in SHELL:
            break
        found.append(PLACEHOLDER.get(word, word))
    return found[1:]


def parse(command: click.Command, args: list[str], name: str, parent: click.Context | None) -> None:
    """click's own parser, down the tree; nothing is run."""
    context = command.make_context(name, list(args), parent=parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        below = command.get_command(context, rest[0])
        assert below is not None, f"there is no command {rest[0]}"
        parse(below, rest[1:], rest[0], context)


def quotations() -> list[tuple[pathlib.Path, str]]:
    return [
        (page, line) for page in PAGES for line in dict.fromkeys(quoted(page.read_text())) if line
    ]


def test_quoted_commands_parse() -> None:
    found = quotations()
    assert len(found) > 60, "the quotations are not found any more"
    wrong = []
    for page, line in found:
        args = words(line)
        if not args or "..." in args or "COMMAND" in args:
            continue
        try:
            parse(cli, args, "nodeagentctl", None)
        except click.exceptions.NoArgsIsHelpError:
            pass  # a group's name alone: it is spoken of, not called
        except click.MissingParameter as error:
            # `place apply` in a sentence speaks of a command; an example shows it whole.
            if error.param is not None and len(args) > 2:
                wrong.append(f"{named(page)}: {line}: {error.format_message()}")
        except click.BadParameter as error:
            # A file of the reader's own is not here.
            if "does not exist" not in error.message:
                wrong.append(f"{named(page)}: {line}: {error.format_message()}")
        except (click.ClickException, AssertionError, ValueError) as error:
            wrong.append(f"{named(page)}: {line}: {error}")
    assert wrong == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=named)
def test_pictures_are_whole_and_ask_nobody(picture: pathlib.Path) -> None:
    text = picture.read_text()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    parser = _Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert "\ufffd" not in text


class _Balanced(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# Put together, so that this file does not hold what it forbids.
HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "deb.debian" + ".org",
    "crates" + ".io",
    "npm" + "js.",
    "conda" + ".org",
    "conda-" + "forge",
    "proxy.go" + "lang",
]
ELSEWHERE = [rf"/{home}/[a-z0-9]" for home in ("ro" + "ot", "ho" + "me", "wo" + "rk")]
UNDONE = r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bX" + r"XX\b"
FORBIDDEN = re.compile("|".join([*map(re.escape, HOSTS), *ELSEWHERE, UNDONE]))
MADE_UP = re.compile(r"/ho" + r"me/(?:NAME|<user-\d+>|\w+)")
"""The redaction of home folders is spoken of, and tested, with made-up names."""
REDACTION = {
    "docs/capture.md",
    "nodeagent/discover/redact.py",
    "tests/discover/test_capture.py",
}


def test_no_registry_no_build_machine_no_open_end() -> None:
    wrong = []
    for path in tracked():
        name = named(path)
        if name == "LICENSE":
            continue
        text = path.read_bytes().decode(errors="replace")
        if name in REDACTION:
            text = MADE_UP.sub("", text)
        wrong += [
            f"{name}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if FORBIDDEN.search(line)
        ]
    assert wrong == []


def test_no_private_path_in_file_names() -> None:
    assert [named(p) for p in tracked() if FORBIDDEN.search(named(p))] == []
