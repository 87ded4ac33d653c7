"""What the demo prints: scenes, hops with their times, and what was checked. Plain text where there is no terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.text import Text

from oubliette.cli.show import visible


class Story:
    """Tells the demo on stdout and counts what was checked, and what was not as specified."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._scene_began = self._began
        self.checks = 0
        self.differences = 0

    def title(self, text: str) -> None:
        self._line((text, "bold"))

    def scene(self, title: str) -> None:
        """Begins a scene; the times of its hops count from here."""
        self._scene_began = time.monotonic()
        self._line()
        self._line((title, "bold cyan"))

    def hop(self, who: str, what: str) -> None:
        """Tells one step of the way."""
        self._line((f"{self.milliseconds:6d} ms  ", "dim"), (f"{who:<19}", "yellow"), (visible(what), ""))

    def check(self, what: str, actual: Any, expected: Any) -> None:
        """Compares an outcome with the specification's."""
        self.checks += 1
        if actual == expected:
            self._line(("       ok  ", "bold green"), (visible(what), "green"))
        else:
            self.differ(f"{what}: {actual!r} instead of {expected!r}")

    def differ(self, how: str) -> None:
        """Tells what is not as specified."""
        self.differences += 1
        self._line(("   DIFFERS ", "bold red"), (visible(how), "red"))

    def end(self) -> None:
        """Tells how it went."""
        took = time.monotonic() - self._began
        self._line()
        if self.differences:
            self._line((f"Not as the specification says: {self.differences} ({took:.1f} s)", "bold red"))
        else:
            self._line((f"All {self.checks} checks are as the specification says ({took:.1f} s)", "bold green"))

    @property
    def milliseconds(self) -> int:
        """The time since the scene began."""
        return round((time.monotonic() - self._scene_began) * 1000)

    def _line(self, *parts: tuple[str, str]) -> None:
        self._console.print(Text.assemble(*parts))
