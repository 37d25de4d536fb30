"""The guides keep their word: every Python example runs, shows what it says it shows, and every link leads somewhere.

The conventions of a page:

- its ```python blocks are executed in order, in one namespace and an empty working directory;
- a ```text block is the exact standard output of the Python block before it;
- a Python block that begins with the comment `# name.py` is the module `name`, which later blocks may import, and the
  file of that name in the working directory, which processes they start may import.
"""

import contextlib
import io
import re
import sys
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "results" / "README.md"]

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<language>[\w+-]*)")
MODULE = re.compile(r"# (?P<name>\w+)\.py\n")
LINK = re.compile(r"\]\((?P<markdown>[^)\s]+)[^)]*\)|(?:src|href)=\"(?P<html>[^\"]+)\"")


of_every_page = pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])


@of_every_page
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(page, monkeypatch)


@of_every_page
def test_links_lead_somewhere(page: Path) -> None:
    dead = [f"{page}:{line}: {target}" for line, target in links(page) if not leads_somewhere(page, target)]
    assert not dead, "\n".join(["no such file or heading:", *dead])


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    """Where its text begins, counted from 1."""


@dataclass(frozen=True)
class Example:
    """A Python block, with the output it promises if it promises any."""

    code: Block
    output: Block | None


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    index = 0
    while index < len(lines):
        opening = FENCE.match(lines[index])
        index += 1
        if opening is None:
            continue
        begin = index
        while index < len(lines) and not lines[index].strip().startswith(opening["ticks"]):
            index += 1
        assert index < len(lines), f"{page}:{begin}: this block is never closed"
        text = "".join(line.removeprefix(opening["indent"]) + "\n" for line in lines[begin:index])
        index += 1
        yield Block(opening["language"], text, begin + 1)


def examples(page: Path) -> Iterator[Example]:
    found = list(blocks(page))
    for index, block in enumerate(found):
        if block.language == "python":
            output = next(
                (following for following in found[index + 1 : index + 2] if following.language == "text"), None
            )
            yield Example(block, output)


def run_examples(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _module("page_under_test", monkeypatch)
    for example in examples(page):
        code = example.code
        own_module = MODULE.match(code.text)
        module = _module(own_module["name"], monkeypatch) if own_module else session
        if own_module:
            Path(f"{own_module['name']}.py").write_text(code.text, encoding="utf-8")
            monkeypatch.syspath_prepend(Path.cwd())
        printed = io.StringIO()
        try:
            # Blank lines in front make Python count the lines of the page.
            compiled = compile("\n" * (code.line - 1) + code.text, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(compiled, module.__dict__)
        except Exception as error:
            pytest.fail(f"{page}:{_line(error, page, code)}: {traceback.format_exc()}", pytrace=False)
        if example.output is not None and printed.getvalue() != example.output.text:
            pytest.fail(
                f"{page}:{code.line}: this block prints\n\n{printed.getvalue()}\n"
                f"but the page says in line {example.output.line}\n\n{example.output.text}",
                pytrace=False,
            )


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that can be imported, and whose classes can be found again by name, until the test is over."""
    assert name not in sys.modules, f"a page must not take the name of the module {name}"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def _line(error: Exception, page: Path, code: Block) -> int:
    """The line of the page that an error comes from."""
    if isinstance(error, SyntaxError) and error.filename == str(page):
        return error.lineno or code.line
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or code.line for frame in reversed(frames) if frame.filename == str(page)), code.line)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code, and their numbers."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def links(page: Path) -> Iterator[tuple[int, str]]:
    """The links and images of a page, outside code, that lead to our own files or headings: line and target."""
    for number, line in prose(page):
        for link in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target = link["markdown"] or link["html"]
            if not re.match(r"[a-z]+:", target):
                yield number, target


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether there is such a file, and such a heading in it."""
    path, _, anchor = target.partition("#")
    there = page.parent / path if path else page
    return there.exists() and (not anchor or anchor in anchors(there))


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links: small letters, with a hyphen for each space."""
    headings = [line.lstrip("#").strip().lower() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}


# The tests above are only as good as these tools.


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_share_a_namespace_and_show_their_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = write(tmp_path, "```python\nx = 1\n```\n\n- so\n\n  ```python\n  print(x)\n  ```\n\n```text\n1\n```\n")
    assert [example.output is not None for example in examples(page)] == [False, True]
    run_examples(page, monkeypatch)


def test_a_page_may_have_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples(write(tmp_path, "# Title\n"), monkeypatch)


def test_a_named_block_is_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = "```python\n# mine.py\nclass C: ...\n```\n"
    use = "```python\nimport mine\nprint(mine.C.__module__)\n```\n```text\nmine\n```\n"
    run_examples(write(tmp_path, module + use), monkeypatch)
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == "# mine.py\nclass C: ...\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("# Title\n\n```python\nx = 1\nx / 0\n```\n", 5, "ZeroDivisionError"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", 2, "this block prints"),
        ("```python\nprint(1)\n```\n\n```text\n1\n\n```\n", 2, "this block prints"),
        ("```python\nok = True\n```\n\n```python\ny = (\n```\n", 6, "SyntaxError"),
        ("```python\ndef f():\n    raise KeyError\n```\n\n```python\nf()\n```\n", 3, "KeyError"),
    ],
)
def test_a_failing_block_is_named_by_file_and_line(
    text: str, line: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = write(tmp_path, text)
    with pytest.raises(pytest.fail.Exception, match=re.escape(f"{page}:{line}: ")) as failure:
        run_examples(page, monkeypatch)
    assert message in str(failure.value)


def test_a_warning_of_ours_fails_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```python\nimport warnings\nfrom samplr.errors import SamplrWarning\nwarnings.warn('so', SamplrWarning)\n```\n"
    )
    with pytest.raises(pytest.fail.Exception, match="SamplrWarning: so"):
        run_examples(write(tmp_path, text), monkeypatch)


def test_links_are_found_outside_code(tmp_path: Path) -> None:
    text = '[a](a.md#top) ![b](img/b.png "title") [web](https://x.org) [here](#here) `[no](no.md)`\n'
    page = write(tmp_path, text + '```text\n[no](no.md)\n```\n<img src="c.png">\n')
    assert list(links(page)) == [(1, "a.md#top"), (1, "img/b.png"), (1, "#here"), (5, "c.png")]


def test_links_lead_to_files_and_headings(tmp_path: Path) -> None:
    page = write(tmp_path, "# What it's for\n```text\n# no heading\n```\n")
    for target in ("page.md", "page.md#what-its-for", "#what-its-for"):
        assert leads_somewhere(page, target)
    for target in ("pages.md", "page.md#what-for", "#no-heading"):
        assert not leads_somewhere(page, target)


def test_a_block_that_is_never_closed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="never closed"):
        list(blocks(write(tmp_path, "```python\nx = 1\n")))
