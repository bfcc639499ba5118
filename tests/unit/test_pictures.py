"""The pictures of a terminal: what is kept of what a command writes to it, and that the files are fit to be shown."""

import sys
from pathlib import Path

import pytest

from devtools import pictures


def test_lines_stay_with_their_colours_and_the_bar_does_not() -> None:
    """As rich writes them: a line is printed over the erased bar, which is drawn again below it."""
    bar = "\u280b ━━━━━━ 0% 0:00:01 training"
    assert pictures.printed("\x1b[?25l\r\x1b[2K12:00:01 training\r\n") == "12:00:01 training"
    assert pictures.printed(f"{bar}\r\x1b[2K\x1b[33m12:00:02 killed\x1b[0m\r\n") == "\x1b[33m12:00:02 killed\x1b[0m"
    assert pictures.printed(f"{bar}\r\n") is None


def test_a_picture_shows_the_command_and_what_it_wrote_without_the_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    terminal = pictures.Terminal(tmp_path)
    with pytest.raises(RuntimeError, match="`raytrain status nothing` ended with 2"):
        terminal.type("raytrain status nothing")
    (tmp_path / "ray_results").mkdir()
    terminal.type(f"raytrain ls {tmp_path}/ray_results")
    terminal.draw("picture", "a title")
    drawn = (tmp_path / "picture.svg").read_text().replace("&#160;", " ")
    assert "$ raytrain status nothing" in drawn
    assert "no runs in ~/ray_results" in drawn
    assert terminal._shortened(f"{sys.prefix}/lib and {pictures.ROOT}/docs") == "~/.venv/lib and ~/ray-train-workflows/docs"
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")


def test_a_picture_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(pictures, "BYTES", 100)
    with pytest.raises(ValueError, match="expected at most 100"):
        pictures.Terminal(tmp_path).draw("picture", "a title")
    assert not list(tmp_path.iterdir())


def test_the_pictures_of_the_docs_are_small() -> None:
    found = [*pictures.IMAGES.glob("*.svg")]
    assert {file.stem for file in found} == {"run-healthy", "run-killed", "run-outcome"}
    assert all(file.stat().st_size <= pictures.BYTES for file in found), found
