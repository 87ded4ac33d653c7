"""What a token may do: a closed grammar and one algebra (WIRE section 6, "Scopes")."""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

Access = Literal["read", "write", "admin"]
Target = Literal["global", "project"]

# "`admin`, `admin:ro`, `project:<id>`, `project:<id>:ro`; nothing else is a scope". \Z, as `$` allows a newline.
_GRAMMAR: Final = re.compile(r"(?:admin|project:([A-Za-z0-9_-]{1,64}))(:ro)?\Z", re.ASCII)
EXAMPLES: Final = "admin, admin:ro, project:<id>, project:<id>:ro"


class Scope(Struct, frozen=True):
    """A parsed scope; `project_id` is None for the two `admin` ones."""

    project_id: str | None
    read_only: bool

    def covers(self, project_id: str) -> bool:
        """Whether things of a project exist for the asker at all."""
        return self.project_id is None or self.project_id == project_id

    def allows(self, access: Access, target: Target) -> bool:
        """Whether a tool may be called, on a thing that the scope covers.

        "A read-only scope may call only `read` tools; a project scope may call `project` tools on its own project and
        `global` `read` tools; `admin` access needs the scope `admin`."
        """
        if access == "read":
            return True
        if self.read_only:
            return False
        return self.project_id is None or (access == "write" and target == "project")


def parse_scope(text: str) -> Scope | None:
    """Returns the scope that `text` names, None where it names none."""
    match = _GRAMMAR.match(text)
    return Scope(match[1], match[2] is not None) if match else None
