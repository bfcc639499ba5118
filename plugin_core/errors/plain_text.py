"""Text that other people wrote, made safe for a terminal, a log and a page of Markdown."""

from __future__ import annotations

import re
from typing import Any

#: Escape sequences (ECMA-48): CSI; strings for the terminal (OSC, DCS, SOS, PM, APC) up to their end, or the line's where
#: they have none; the others, of two bytes or with intermediates.
_STRING = r"[^\n\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
_ESCAPES = re.compile(rf"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_]{_STRING}|[ -/]*[0-~]?)")
#: What only a text beyond ASCII can hold: CSI and strings that begin with one C1 character, other control characters, marks
#: that turn the direction of text, halves of characters.
_BEYOND_ASCII = re.compile(
    rf"\x9b[0-?]*[ -/]*[@-~]?|[\x90\x98\x9d-\x9f]{_STRING}"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ASCII_CONTROL = bytes(code for code in (*range(32), 127) if code not in b"\t\n")
_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", **{sign: f"\\{sign}" for sign in "\\`[]|*~"}})


def plain(text: str) -> str:
    """A text of lines without anything that a terminal obeys or that hides other text."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        return _plain_ascii(text)
    # a log may be large, and most of its lines are ASCII
    return "\n".join(_plain_ascii(line) if line.isascii() else _BEYOND_ASCII.sub("", line) for line in text.split("\n"))


def _plain_ascii(text: str) -> str:
    return text.encode().translate(None, _ASCII_CONTROL).decode()


def markdown_text(value: Any) -> str:
    """A value as text within Markdown: no HTML, link, image or code in it, and no end of a table's cell."""
    return plain(str(value)).translate(_MARKDOWN)


def markdown_code(value: Any) -> str:
    """A value as code within Markdown."""
    text = plain(str(value)).replace("`", "'").replace("\n", " ").replace("|", "\\|")
    return f"`{text}`"
