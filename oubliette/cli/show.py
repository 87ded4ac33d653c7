"""How answers are printed: tables, JSON, and text that a terminal may be given."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

# A pipe has no width: nothing is folded or cut for it.
_ENDLESS: Final = 10_000


def visible(text: str) -> str:
    """Returns `text` with its control and formatting characters escaped: what an agent says must not steer a terminal.

    Line ends are escaped too, so that a line stays one.
    """
    return "".join(_escape(character) if _is_hidden(character) else character for character in text)


def print_json(value: Any) -> None:
    """Prints a value as one line of JSON."""
    click.echo(json.dumps(value))


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints `rows` as a table; `columns` names the key of each column and its title. The first one is never folded."""
    # Only here: watching and scripts need no tables.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(columns.values()):
        table.add_column(title, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*[Text(_cell(row.get(key))) for key in columns])
    Console(width=None if sys.stdout.isatty() else _ENDLESS).print(table)


def _cell(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value or "")
    return visible(text) or "-"


def _is_hidden(character: str) -> bool:
    # Control characters (ESC is one), those that turn the reading direction, line ends, and halves of pairs.
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
