"""The agents that `benchmarks.agents` starts: how each is configured, and how it is known when it had its tools.

The example agent says so itself. A real one does not: there it is the moment at which its model, a scripted one, is
first shown them.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from oubliette.runtimes.base import Kind
from tests.helpers.scripted_model import Asked, serve

# Who the caller says it is, and its tool, which answers with its arguments.
CALLER_ID: Final = "myapp"
TOOL: Final = {"name": "echo", "inputSchema": {"type": "object"}}
TOOL_INSIDE: Final = f"{CALLER_ID}_{TOOL['name']}"

_HERE: Final = Path(__file__).parent
_REPOSITORY: Final = _HERE.parent
_STOPWATCH: Final = _HERE / "stopwatch.py"
_EXAMPLE: Final = _REPOSITORY / "examples" / "agent.py"
_MODULES: Final = _REPOSITORY / "tests" / "agents" / "node_modules"

Json = dict[str, Any]


class Subject(ABC):
    """An agent, as it is configured in one runtime."""

    name: str
    mounts: Sequence[Path] = ()
    model_hosts: Sequence[str] = ()

    @abstractmethod
    def profile(self, kind: Kind) -> Json:
        """Returns its profile, as the configuration has it."""

    @abstractmethod
    def listed(self, begun: int, said: Sequence[str]) -> int:
        """Returns when it had its tools, in ns of the monotonic clock: after `begun`. `said` are its lines.

        Raises `ValueError` where it never had.
        """


class Example(Subject):
    """The example agent with a stopwatch."""

    name = "example"
    mounts = (_STOPWATCH, _EXAMPLE)

    def profile(self, kind: Kind) -> Json:
        # An image has a Python of its own.
        python = sys.executable if kind in ("process", "bubblewrap") else "python3"
        return {"type": "command", "command": [python, str(_STOPWATCH)]}

    def listed(self, begun: int, said: Sequence[str]) -> int:
        return numbers("listed", said)[0]


class Claude(Subject):
    """Claude Code, with a scripted model at `url` that is `asked`."""

    name = "claude"

    def __init__(self, url: str, asked: Sightings) -> None:
        self._url = url
        self._asked = asked
        self.model_hosts = (url.removeprefix("http://"),)
        self.mounts = (_MODULES,) if _MODULES.exists() else ()

    def profile(self, kind: Kind) -> Json:
        command = str(_MODULES / ".bin" / "claude") if self.mounts else "claude"
        environment = {"ANTHROPIC_BASE_URL": self._url, "ANTHROPIC_API_KEY": "none"}
        return {"type": "claude", "command": [command], "env": environment}

    def listed(self, begun: int, said: Sequence[str]) -> int:
        found = next((moment for moment in self._asked.moments if moment > begun), None)
        if found is None:
            raise ValueError(f"its model was never shown {TOOL_INSIDE}; the agent said {said}")
        return found


class Sightings(list[Asked]):
    """What a model was asked; `moments` are those at which it was shown the caller's tool."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[int] = []

    def append(self, asked: Asked) -> None:
        """Takes a request, in whichever thread serves it."""
        if any(tool.endswith(TOOL_INSIDE) for tool in asked.tools):
            self.moments.append(time.monotonic_ns())
        super().append(asked)


@contextmanager
def claude() -> Iterator[Subject]:
    """Claude Code, with its model as long as the block. Raises `SystemExit` where it is not installed."""
    if not (_MODULES / ".bin" / "claude").exists() and shutil.which("claude") is None:
        raise SystemExit("claude is not installed: npm ci --prefix tests/agents")
    with serve([{"say": "done"}]) as model:
        model.asked = asked = Sightings()
        yield Claude(model.url, asked)


@contextmanager
def example() -> Iterator[Subject]:
    """The example agent."""
    yield Example()


SUBJECTS: Final = {"example": example, "claude": claude}


def configuration(kind: Kind, subject: Subject, image: str, sessions: int) -> str:
    """Returns the configuration in which `subject` is the agent and `kind` the runtime, for `sessions` at once."""
    runtime = {
        "kind": kind,
        "image": image,
        "mounts": [str(path) for path in subject.mounts],
        "model_hosts": list(subject.model_hosts),
    }
    sections: Mapping[str, Json] = {
        "runtime": runtime,
        "agents": {"default": subject.name, "profiles": {subject.name: subject.profile(kind)}},
        "sessions": {"max_active_per_project": sessions},
    }
    # JSON is YAML.
    return "".join(f"{name}: {json.dumps(section)}\n" for name, section in sections.items())


def numbers(word: str, said: Sequence[str]) -> list[int]:
    """Returns the numbers of the line of the stopwatch that begins with `word`. Raises `ValueError` without any."""
    for line in said:
        first, *rest = line.split(" ")
        if first == word:
            return [int(number) for number in rest]
    raise ValueError(f"the agent did not say {word!r}, but {said}")
