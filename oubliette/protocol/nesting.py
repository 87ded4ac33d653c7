"""How deep a JSON text is nested, without parsing it.

Parsers recurse, so depth is measured before any parser sees the text (WIRE section 1: "nested deeper than 128: -32700").
A Python loop over megabytes would stall the event loop; every step here is one C call over the whole text.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

MAX_DEPTH: Final = 128

# Possessive quantifiers: an unterminated string costs one pass, never a backtrack.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ALL_BUT_BRACKETS: Final = bytes(b for b in range(256) if b not in b"[]{}")
# Brackets as signed bytes: an opening one is +1, a closing one -1.
_AS_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def too_deep(text: bytes, limit: int = MAX_DEPTH) -> bool:
    """Says whether objects and arrays nest deeper than `limit`. Text that is not JSON gets an answer too."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    steps = _STRING.sub(b"", text).translate(_AS_STEPS, _ALL_BUT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit
