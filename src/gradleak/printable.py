"""Text made safe to print: names, texts and errors come from files of others, and a terminal obeys what is in them.

Everything that gradleak prints goes through `visible`: the screen's console, error lines, and data on standard output.
JSON goes through `escaped_json` instead, which loses nothing.
"""

from __future__ import annotations

import re

LONGEST_QUOTE = 200
"""Characters of a foreign text that an error line quotes."""

# C0 and C1 controls, separators of lines and paragraphs, marks that reorder or hide text, halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_SYMBOLS = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}


def visible(text: str, *, lines: bool = False) -> str:
    """Return a text with every control character and bidi mark as a visible symbol, such as `␛` or `<U+202E>`.

    Args:
        text: any text.
        lines: keep line feeds, for a text of several lines.
    """
    return _UNSAFE.sub(lambda found: _shown(found[0], lines), text)


def in_one_line(text: str) -> str:
    """Return a text that is safe to print as one line: runs of white space as one space."""
    return visible(" ".join(text.split()))


def quoted(text: str) -> str:
    """Return a foreign text as one line of at most `LONGEST_QUOTE` characters."""
    line = in_one_line(text)
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}…"


def escaped_json(text: str) -> str:
    """Return JSON text with the characters that `visible` replaces escaped, which means the same."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else _json_escape(found[0]), text)


def _shown(sign: str, lines: bool) -> str:
    if lines and sign == "\n":
        return sign
    return _SYMBOLS.get(sign) or f"<U+{ord(sign):04X}>"


def _json_escape(sign: str) -> str:
    if ord(sign) < 0x10000:
        return f"\\u{ord(sign):04x}"
    high, low = divmod(ord(sign) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
