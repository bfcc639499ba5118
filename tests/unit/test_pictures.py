"""The pictures of the docs: what is kept of what a command writes to its terminal, and that the docs show them all."""

import inspect
import re
import sys
from pathlib import Path

import pytest

from devtools.pictures import pages as pages_in_a_browser
from devtools.pictures import terminals


def test_lines_stay_with_their_colours_and_the_bar_does_not() -> None:
    """As rich writes them: a line is printed over the erased bar, which is drawn again below it."""
    bar = "\u280b ━━━━━━ 0% 0:00:01 training"
    assert terminals.printed("\x1b[?25l\r\x1b[2K12:00:01 training\r\n") == "12:00:01 training"
    assert terminals.printed(f"{bar}\r\x1b[2K\x1b[33m12:00:02 killed\x1b[0m\r\n") == "\x1b[33m12:00:02 killed\x1b[0m"
    assert terminals.printed(f"{bar}\r\n") is None


def test_a_picture_shows_the_command_and_what_it_wrote_without_the_folders_name(tmp_path: Path) -> None:
    terminal = terminals.Terminal(tmp_path)
    with pytest.raises(RuntimeError, match="`raytrain status nothing` ended with 2"):
        terminal.type("raytrain status nothing")
    (tmp_path / "ray_results").mkdir()
    terminal.type(f"raytrain ls {tmp_path}/ray_results")
    terminal.draw(tmp_path / "picture.svg", "a title")
    drawn = (tmp_path / "picture.svg").read_text().replace("&#160;", " ")
    assert "$ raytrain status nothing" in drawn
    assert "no runs in ~/ray_results" in drawn
    named = f"{sys.prefix}/lib and {terminals.ROOT}/docs"
    assert terminal._shortened(named) == "~/.venv/lib and ~/ray-train-workflows/docs"
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")


def test_a_picture_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminals, "BYTES", 100)
    with pytest.raises(ValueError, match="expected at most 100"):
        terminals.Terminal(tmp_path).draw(tmp_path / "picture.svg", "a title")
    assert not list(tmp_path.iterdir())


def test_the_docs_show_each_picture_and_none_is_missing() -> None:
    pages = "".join(page.read_text() for page in [terminals.ROOT / "README.md", *(terminals.ROOT / "docs").glob("*.md")])
    shown = re.findall(r"\]\((?:docs/)?images/(\S+?)\)", pages)
    kept = {file.name: file.stat().st_size for file in (terminals.ROOT / "docs" / "images").iterdir()}
    assert set(shown) == set(kept)
    made = inspect.getsource(terminals) + inspect.getsource(pages_in_a_browser)
    named = {*re.findall(r'images / "(\S+?)"', made), *(f"prefect-{name}.png" for name in pages_in_a_browser.SHOWN)}
    assert named == set(kept), "`make pictures` makes them all"
    assert all(size <= terminals.BYTES for name, size in kept.items() if name.endswith(".svg")), kept
