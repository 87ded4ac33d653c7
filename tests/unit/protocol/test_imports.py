"""What `oubliette.protocol` may load: the core does no I/O, and part of it runs in other people's containers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTOCOL = ROOT / "oubliette" / "protocol"
MODULES = sorted(path.stem for path in PROTOCOL.glob("*.py") if path.stem != "__init__")
STANDARD_LIBRARY_PART = ["lines", "members", "names", "nesting", "results", "revisions", "sse"]


def imported(path: Path) -> set[str]:
    """Returns the modules that a file names in its imports, wherever they stand."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_knows_only_protocol_msgspec_and_the_standard_library(module: str) -> None:
    outside = {name for name in imported(PROTOCOL / f"{module}.py") if not name.startswith("oubliette.protocol")}
    roots = {name.partition(".")[0] for name in outside}
    assert roots <= sys.stdlib_module_names | {"msgspec"}
    # No I/O, no clock, no logging, no waiting (STYLE, "What to absorb", 1).
    assert not roots & {"asyncio", "logging", "os", "select", "socket", "ssl", "subprocess", "threading", "time"}


def loaded(modules: list[str], *flags: str) -> set[str]:
    """Returns what a fresh interpreter has loaded after importing `modules` of protocol, without what it began with."""
    imports = "".join(f"import oubliette.protocol.{module}\n" for module in modules)
    program = f"import sys\nbefore = set(sys.modules)\nsys.path.insert(0, {str(ROOT)!r})\n{imports}"
    program += "print(*sorted(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    return set(done.stdout.split())


def test_the_part_for_containers_needs_nothing_but_the_standard_library() -> None:
    # -S: no site-packages at all, so that an import of anything else could not even succeed.
    modules = loaded(STANDARD_LIBRARY_PART, "-I", "-S")
    ours = {"oubliette", "oubliette.protocol", *(f"oubliette.protocol.{module}" for module in STANDARD_LIBRARY_PART)}
    assert {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names} == ours


def test_the_whole_layer_loads_neither_trio_nor_the_rest_of_the_daemon() -> None:
    modules = loaded(MODULES)
    assert not {name for name in modules if name.partition(".")[0] in ("trio", "quart", "hypercorn", "structlog")}
    assert {name for name in modules if name.startswith("oubliette")} == {
        "oubliette",
        "oubliette.protocol",
        *(f"oubliette.protocol.{module}" for module in MODULES),
    }
