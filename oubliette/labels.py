"""The names that people give to projects, workspaces and packs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from oubliette.errors import InvalidParams

MAX_LABEL: Final = 200
MAX_PACKS: Final = 64
PACK: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_PACK: Final = re.compile(PACK + r"\Z", re.ASCII)


def check_label(label: str) -> None:
    """Raises `InvalidParams` where `label` is no name for a project or a workspace, and says what one is."""
    # Printable: no control and no formatting characters, no line ends, no white space but the plain one.
    if not 1 <= len(label) <= MAX_LABEL or not label.isprintable() or label != label.strip():
        raise InvalidParams(
            f"a name has 1 to {MAX_LABEL} printable characters and no white space at its ends", field="name"
        )


def same_for_readers(label: str) -> str:
    """Returns what two names share that are one to who reads them: an "é" may be one character or two."""
    return unicodedata.normalize("NFC", label)


def check_packs(packs: Sequence[str] | None) -> None:
    """Raises `InvalidParams` where a list of packs names one that could not be, or one twice."""
    if packs is None:
        return
    if len(packs) > MAX_PACKS or len(set(packs)) < len(packs):
        raise InvalidParams(f"packs has at most {MAX_PACKS} names, each once", field="packs")
    if any(not _PACK.match(pack) for pack in packs):
        raise InvalidParams("a pack's name has 1 to 64 letters, digits, '_' and '-'", field="packs")
