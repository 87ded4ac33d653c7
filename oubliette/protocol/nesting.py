"""How deep a JSON text is nested, without parsing it.

Parsers recurse, so depth is measured before any parser sees the text (WIRE section 1: "nested deeper than 128:
-32700"). A Python loop over megabytes would stall the event loop; every step here is one C call over the whole text.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

MAX_DEPTH: Final = 128

_STRING: Final = re.compile(rb'"[^"]*+"')
_ALL_BUT_MARKS: Final = bytes(b for b in range(256) if b not in b'[]{}"')
# Brackets as signed bytes: an opening one is +1, a closing one -1.
_AS_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def too_deep(text: bytes, limit: int = MAX_DEPTH) -> bool:
    """Says whether objects and arrays nest deeper than `limit`. Text that is not JSON gets an answer too."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    steps = _without_strings(text).translate(_AS_STEPS, b'"')
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit


def _without_strings(text: bytes) -> bytes:
    """The brackets of `text` that are outside strings, and the quote of a string that does not end."""
    # Escapes go first, from left to right as a parser reads them: every quote left begins or ends a string.
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _ALL_BUT_MARKS)
    # Most strings hold no bracket: to take two neighbouring quotes away changes nothing for the brackets around them.
    return _STRING.sub(b"", marks.replace(b'""', b""))
