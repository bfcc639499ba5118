"""Sanitise untrusted text for terminals, logs and Markdown."""

from __future__ import annotations

import codecs
import io
import re
from typing import Any

#: Escape sequences (ECMA-48): CSI; control strings (OSC, DCS, SOS, PM, APC) up to their terminator, or the end of the line
#: if unterminated; all others, of two bytes or with intermediates.
_STRING = r"[^\n\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
_ESCAPES = re.compile(rf"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_]{_STRING}|[ -/]*[0-~]?)")
#: Found only in non-ASCII text: CSI and control strings introduced by a C1 character, other control characters,
#: bidirectional marks, lone surrogates.
_BEYOND_ASCII = re.compile(
    rf"\x9b[0-?]*[ -/]*[@-~]?|[\x90\x98\x9d-\x9f]{_STRING}"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: Colour codes, and the beginning of one at the end of a piece.
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CUT_ANSI = re.compile(r"\x1b(\[[0-9;?]{0,20})?\Z")
_ASCII_CONTROL = bytes(code for code in (*range(32), 127) if code not in b"\t\n")
_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", **{sign: f"\\{sign}" for sign in "\\`[]|*~"}})


def plain(text: str) -> str:
    """Remove everything that controls a terminal or hides other text; line breaks stay."""
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
    """A value as Markdown text; HTML, links, images, code and table cell separators are escaped."""
    return plain(str(value)).translate(_MARKDOWN)


def markdown_code(value: Any) -> str:
    """A value as inline Markdown code."""
    text = plain(str(value)).replace("`", "'").replace("\n", " ").replace("|", "\\|")
    return f"`{text}`"


class Text:
    """Decodes bytes, in pieces of any size, to text without colour codes and with plain line ends."""

    def __init__(self) -> None:
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._held = ""

    def feed(self, data: bytes) -> str:
        """Decode the next piece; empty data marks the end."""
        text = self._held + self._decoder.decode(data, final=not data)
        cut = _CUT_ANSI.search(text, max(0, len(text) - 32)) if data else None
        end = cut.start() if cut else len(text)
        self._held, text = text[end:], text[:end]
        return _ANSI.sub("", text) if "\x1b" in text else text
