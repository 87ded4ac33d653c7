"""A configuration file as a tree of values that know their line: strict YAML and nothing else (WIRE section 9).

Anchors, tags, merge keys and duplicate keys are refused: a configuration needs none, and bombs are made of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

# Far more than a configuration holds, and little enough that the worst file is refused within a second.
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_EVENTS: Final = 50_000
# YAML 1.1 reads 1:1:1:… as one number, in quadratic time: half a megabyte of it took 97 s.
MAX_NUMBER_CHARACTERS: Final = 100
# The schema needs 5 levels. The composer of libyaml recurses on the C stack, so depth is checked before it runs.
MAX_DEPTH: Final = 16
# How much of a refused value an error shows.
_SHOWN_CHARACTERS: Final = 40
_STRING: Final = "tag:yaml.org,2002:str"


class ConfigError(Exception):
    """What is wrong with the configuration, in one line that begins with where: file, line and key, or the option."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value, where it was given, and how an error shows it. No repr: it may be a secret."""

    value: Any = field(repr=False)
    where: str
    shown: str = field(default="nothing", repr=False)

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.where}: {message}")

    def entries(self) -> dict[str, Given]:
        # A section whose keys are all commented out is read as null: it has its defaults.
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error("must be a mapping of keys to values")
        return self.value


class Document:
    """One YAML file as a tree of `Given`, without what a configuration does not need and an attacker does
    (HAZARDS T35): tags, anchors, aliases, merge keys, depth, size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = self._read_text()
        self._loader = yaml.CSafeLoader(self._text)

    def read(self) -> Given:
        try:
            self._check_events()
            node = self._loader.get_single_node()
        except yaml.YAMLError as error:
            raise self._not_yaml(error) from None
        return self._given(node, "", _line(node)) if node else Given({}, f"{self._path}:1")

    def _read_text(self) -> str:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode("utf-8-sig")
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise self._error(data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{self._path}: is larger than {MAX_FILE_BYTES} bytes")
        return text

    def _error(self, line: int, message: str) -> ConfigError:
        return ConfigError(f"{self._path}:{line}: {message}")

    def _not_yaml(self, error: yaml.YAMLError) -> ConfigError:
        mark = getattr(error, "problem_mark", None)
        if mark is None:  # a ReaderError, about one character: it knows the byte
            before = self._text.encode()[: getattr(error, "position", 0)]
            return self._error(before.count(b"\n") + 1, f"is not YAML: {getattr(error, 'reason', error)}")
        why = " ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
        return self._error(mark.line + 1, f"is not YAML: {why}")

    def _check_events(self) -> None:
        depth = 0
        for count, event in enumerate(yaml.parse(self._text, Loader=yaml.CSafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            line = _line(event)
            if depth > MAX_DEPTH:
                raise self._error(line, f"is nested deeper than {MAX_DEPTH} levels")
            if count > MAX_EVENTS:
                raise self._error(line, f"holds more than {MAX_EVENTS} keys and values")
            if getattr(event, "anchor", None) is not None:
                raise self._error(line, "anchors and aliases (& and *) are not allowed: write the value out")
            if getattr(event, "tag", None) is not None:
                raise self._error(line, "tags (!) are not allowed")

    def _given(self, node: yaml.Node, key: str, line: int) -> Given:
        where = f"{self._path}:{line}: {key}" if key else f"{self._path}:{line}"
        if isinstance(node, yaml.MappingNode):
            return Given(self._mapping(node, key), where, "a mapping")
        if isinstance(node, yaml.SequenceNode):
            items = [self._given(item, f"{key}[{i}]", _line(item)) for i, item in enumerate(node.value)]
            return Given(items, where, "a list")
        return Given(self._scalar(node, where), where, as_written(node))

    def _scalar(self, node: yaml.Node, where: str) -> Any:
        if node.tag == _STRING:
            return node.value
        try:
            if len(node.value) <= MAX_NUMBER_CHARACTERS:
                return self._loader.construct_object(node)
        except (ValueError, OverflowError):  # a date in month 13
            pass
        raise ConfigError(f"{where}: cannot be read: in quotes it is a string")

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Given]:
        entries: dict[str, Given] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = self._key(key_node), _line(key_node)
            shown = f"{path}.{readable(key)}" if path else readable(key)
            if key in entries:
                raise self._error(line, f"{shown}: stands twice, first in line {lines[key]}")
            lines[key] = line
            entries[key] = self._given(value_node, shown, line)
        return entries

    def _key(self, node: yaml.Node) -> str:
        if node.tag == "tag:yaml.org,2002:merge":
            raise self._error(_line(node), "merge keys (<<) are not allowed: write the values out")
        if node.tag != _STRING:
            raise self._error(_line(node), "a key must be a string (in quotes where YAML reads something else)")
        return str(node.value)


def _line(node: yaml.Node | yaml.Event) -> int:
    mark = node.start_mark
    return mark.line + 1 if mark else 1


def readable(key: str) -> str:
    """A key as far as it looks like one: `{TOKEN=abc}` is a key to YAML, and its end a secret."""
    match = re.match(r"[\w.-]{0,40}", key)
    text = match[0] if match else ""
    return text if text == key else f"{text}…"


def as_written(node: yaml.Node) -> str:
    if node.tag == "tag:yaml.org,2002:null":
        return "nothing"
    text = node.value if len(node.value) <= _SHOWN_CHARACTERS else node.value[:_SHOWN_CHARACTERS] + "…"
    return json.dumps(text) if node.tag == _STRING else str(text)
