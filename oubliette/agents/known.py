"""The agents that are known by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from oubliette.agents.acp import AcpAgent
from oubliette.agents.base import Agent
from oubliette.agents.claude import CLAUDE
from oubliette.agents.codex import CODEX
from oubliette.agents.opencode import OPENCODE
from oubliette.agents.profile import CliAgent, Options

# By the `type` of a configured profile. A new agent is a file beside this one, a line here and a type there.
AGENTS: Final[Mapping[str, Callable[[Options], Agent]]] = {
    "claude": partial(CliAgent, CLAUDE),
    "codex": partial(CliAgent, CODEX),
    "opencode": partial(CliAgent, OPENCODE),
    "acp": AcpAgent,
}
