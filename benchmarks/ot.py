"""The `ot` pack: what a look at a catalogue of 2,000 tools costs, and the import of the package.

`python -m benchmarks.ot [--rounds 10] [--json] [--quick]`

`ot.tools()` beside `yaml.safe_dump(default_flow_style=None)` of the same data, and beside libyaml's dumper, in turns
in one process; `ot.tools(name=…)` of a tool that there is and of one that there is not. Every call gets a new `State`,
as in the daemon, so that the making of its indexes counts. The import is timed in a new interpreter, from the statement
to its end, beside the CPU time that it took, which says more where other programs run; one run before the others is not
counted: it writes the `.pyc` files.

The aims, for the medians: 10 times as fast as `safe_dump`; one tool within 1 ms; the import within 60 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import msgspec
import yaml

import ot_pack
from ot_pack.signatures import args_from_schema, from_schema
from ot_pack.state import Entry, State, bound

TOOLS: Final = 2000
TOOLS_OF_A_PACK: Final = 20
RATIO_AIM: Final = 10.0
NAME_AIM_MS: Final = 1.0
IMPORT_AIM_MS: Final = 60.0

OURS: Final = "ot.tools()"
DUMPED: Final = "yaml.safe_dump"
DUMPED_IN_C: Final = "yaml.CSafeDumper"
ONE: Final = "ot.tools(name=…)"
NONE: Final = "ot.tools(name=…), not found"
IMPORT: Final = "import ot_pack"
IMPORT_CPU: Final = "import ot_pack, CPU"

_SCHEMA: Final[Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": 'What to look for: words, or a phrase in "quotes"'},
        "count": {"type": "integer", "default": 10, "description": "How many results"},
        "site": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["query"],
}
_TIMED_IMPORT: Final = """
from time import perf_counter, process_time
wall, cpu = perf_counter(), process_time()
import ot_pack
print((perf_counter() - wall) * 1000, (process_time() - cpu) * 1000)
"""


class Result(msgspec.Struct, frozen=True):
    """Milliseconds, a figure a round, by what was measured."""

    milliseconds: dict[str, list[float]]
    characters: int


def catalogue() -> tuple[Entry, ...]:
    """Returns the tools, half of them local, half of proxied servers."""
    return tuple(_entry(f"pack{number // TOOLS_OF_A_PACK}", number) for number in range(TOOLS))


def _entry(pack: str, number: int) -> Entry:
    name = f"{pack}.search_{number}"
    return Entry(
        name=name,
        signature=from_schema(name, _SCHEMA),
        description=f"Search source number {number} of {pack}: returns titles, links and a summary of each result",
        source="local" if number < TOOLS / 2 else f"proxy:{pack}",
        args=args_from_schema(_SCHEMA),
    )


def run(rounds: int) -> Result:
    """Measures each of them `rounds` times, in turns, after one round that checks what they answer."""
    entries = catalogue()
    fields = ("name", "signature", "description", "source")
    data = [{name: getattr(entry, name) for name in fields} for entry in entries]
    work = _work(entries, data)
    assert yaml.load(work[OURS](), yaml.CSafeLoader) == data
    assert work[ONE]().startswith(f"name: {entries[-1].name}\n")
    assert work[NONE]().startswith(f"Error: tool 'pack99.serach_1999' not found. Available: {entries[-1].name}, ")
    timed = {title: [0.0] * rounds for title in work}
    for number in range(rounds):
        for title, function in work.items():
            timed[title][number] = _milliseconds(function)
    wall, cpu = zip(*[_import() for _ in range(rounds + 1)][1:], strict=True)
    return Result({**timed, IMPORT: list(wall), IMPORT_CPU: list(cpu)}, len(work[OURS]()))


def _work(entries: tuple[Entry, ...], data: list[dict[str, str]]) -> dict[str, Callable[[], str]]:
    def show(**arguments: str) -> str:
        with bound(State(version="1.0.0", cwd="/", entries=entries)):
            return ot_pack.tools(**arguments)  # type: ignore[arg-type]  # compact is not among them

    def dump_in_c() -> str:
        return str(yaml.dump(data, Dumper=yaml.CSafeDumper, default_flow_style=None))

    return {
        OURS: show,
        DUMPED: lambda: str(yaml.safe_dump(data, default_flow_style=None)),
        DUMPED_IN_C: dump_in_c,
        ONE: lambda: show(name=entries[-1].name),
        NONE: lambda: show(name="pack99.serach_1999"),
    }


def _milliseconds(function: Callable[[], str]) -> float:
    begun = perf_counter()
    function()
    return (perf_counter() - begun) * 1000


def _import() -> tuple[float, float]:
    """Returns how long the import took, and how much CPU time of that was its own."""
    done = subprocess.run([sys.executable, "-c", _TIMED_IMPORT], capture_output=True, text=True, check=True, timeout=60)
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


def table(result: Result) -> str:
    """Returns a row for each measurement, with its ratio to `ot.tools()`, and a line for each aim."""
    ours = statistics.median(result.milliseconds[OURS])
    rows = [_row(title, values, ours) for title, values in result.milliseconds.items()]
    head = f"{TOOLS} tools, {result.characters} characters"
    return "\n".join([f"{head:<32}{'median ms':>10}{'slowest':>10}{'× ot':>8}", *rows, *_verdicts(result)])


def _row(title: str, values: Sequence[float], ours: float) -> str:
    median = statistics.median(values)
    ratio = f"{median / ours:8.2f}" if title not in (IMPORT, IMPORT_CPU) else ""
    return f"{title:<32}{median:10.2f}{max(values):10.2f}{ratio}"


def _verdicts(result: Result) -> list[str]:
    medians = {title: statistics.median(values) for title, values in result.milliseconds.items()}
    ratio = medians[DUMPED] / medians[OURS]
    return [
        f"{OURS} is {ratio:.1f} times as fast as {DUMPED}, of at least {RATIO_AIM:g}: {_verdict(ratio >= RATIO_AIM)}",
        f"{ONE} takes {medians[ONE]:.2f} ms, of less than {NAME_AIM_MS:g}: {_verdict(medians[ONE] < NAME_AIM_MS)}",
        f"{IMPORT} takes {medians[IMPORT]:.0f} ms, of less than {IMPORT_AIM_MS:g}: "
        f"{_verdict(medians[IMPORT] < IMPORT_AIM_MS)}",
    ]


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="one round, for tests")
    given = parser.parse_args()
    result = run(1 if given.quick else given.rounds)
    print(msgspec.json.encode(result).decode() if given.json else table(result))


if __name__ == "__main__":
    main()
