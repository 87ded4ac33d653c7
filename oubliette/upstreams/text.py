"""Text that a proxied server wrote, made fit to be read by an agent or an operator (HAZARDS T26).

What a reader cannot see may still be read by a model, colour a terminal or turn a line around: terminal sequences,
control characters, and all that Unicode calls invisible or directional are taken out.
"""

from __future__ import annotations

import re
from typing import Final

CUT: Final = "…"
# ECMA-48: a control string (OSC, DCS, …) up to its terminator, a control sequence, or an escape of two characters.
# A string without its end is left to the characters below: it must not swallow the rest of a text. It holds no other's
# beginning, so that a text of nothing but beginnings costs linear time.
_TERMINAL: Final = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\x90\x98\x9d-\x9f]{0,4096}+(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    r"|\x1b[ -/]*+[0-~]"
)
# Unicode's Default_Ignorable_Code_Point (invisible, zero-width and directional characters, tags, variation selectors),
# the controls but for line end and tab, halves of surrogate pairs, and the annotation marks.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_LINE_ENDS: Final = re.compile("\r\n?|[\x85\u2028\u2029]")


def clean(text: str, most: int) -> str:
    """Returns `text` without what cannot be seen, cut to at most `most` bytes of UTF-8, an ellipsis in the place of
    the rest."""
    # No character of UTF-8 has less than a byte: what is beyond is not looked at, except to see that it is there.
    kept = _LINE_ENDS.sub("\n", text[: 2 * most])
    kept = _UNSEEN.sub("", _TERMINAL.sub("", kept))
    encoded = kept.encode()
    if len(encoded) <= most and len(text) <= 2 * most:
        return kept
    return encoded[: most - len(CUT.encode())].decode(errors="ignore") + CUT


def clean_line(text: str, most: int) -> str:
    """Returns `clean(text, most)` as one line."""
    return " ".join(clean(text, most).split())
