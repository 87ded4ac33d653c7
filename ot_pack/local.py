"""Local packs: a Python file with `pack`, `__all__` and functions, whose annotations and docstrings say the rest.

    pack = "demo"
    __all__ = ["greet"]

    def greet(name: str, times: int = 1) -> str:
        '''Greets somebody.

        Args:
            name: Who is greeted
            times: How often
        '''

The schema of a tool is that of a msgspec Struct with the function's parameters; a parameter without annotation takes
any JSON value. The file is run anew at each load, from its text: an edit is seen however soon it follows the last one.
"""

from __future__ import annotations

import ast
import copy
import glob
import inspect
import itertools
import math
import os
import re
import sys
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ot_pack.names import MAX_MCP_NAME, PACK, TOOL, mcp_name
from ot_pack.signatures import args_from_function, from_function, summary
from ot_pack.state import LOCAL, Entry

MAX_FILES: Final = 100
# Source that a person wrote; a file by mistake, a video say, is not read whole.
MAX_SOURCE_BYTES: Final = 1024 * 1024
# The bounds of a caller's declaration (WIRE section 2): an agent holds all of it in its context.
MAX_TOOLS: Final = 128
MAX_DESCRIPTION: Final = 16 * 1024
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_PARAMETERS: Final = 64
# How much of what an exception says is told.
MAX_MESSAGE: Final = 500
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_numbers: Final = itertools.count(1)


class PackError(Exception):
    """Why a file gives no pack, in one line that begins with the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTool:
    """One function of a local pack. `name` is its own, `place` the file and the line where it stands, `description` the
    whole docstring.

    `arguments` is a Struct with a field for each parameter, which refuses unknown ones; its fields are passed to
    `function` by name. `function` returns what it returns, or with `is_async` an awaitable of it.
    """

    name: str
    place: str
    description: str
    function: Callable[..., Any]
    is_async: bool
    arguments: type[Struct]
    input_schema: Mapping[str, Any]
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LocalPack:
    """A local pack. `place` is the file and the line where `pack` stands. Its module lives as long as it does."""

    name: str
    path: Path
    place: str
    tools: Mapping[str, LocalTool]


def load_all(patterns: Sequence[str], folder: Path) -> tuple[dict[str, LocalPack], dict[str, str]]:
    """Returns the packs of all files that `patterns` (files or globs, relative to `folder`) stand for, by name, and
    by file what is wrong with those that give none. Of two files with the same pack neither gives one.
    """
    loaded: dict[str, list[LocalPack]] = {}
    problems: dict[str, str] = {}
    for path in _files(patterns, folder, problems):
        try:
            pack = load(path)
        except PackError as error:
            problems[str(path)] = str(error)
        else:
            loaded.setdefault(pack.name, []).append(pack)
    for same in loaded.values():
        problems |= _rivals(same)
    return {name: same[0] for name, same in loaded.items() if len(same) == 1}, problems


def load(path: Path) -> LocalPack:
    """Runs a file and returns its pack. Raises `PackError`."""
    tree, code = _compiled(path)
    module = ModuleType(f"_local_pack_{next(_numbers)}_{path.stem}")
    module.__file__ = str(path)
    # Dataclasses and Structs with annotations in quotes look there for what these name.
    sys.modules[module.__name__] = module
    try:
        # Standard output is the program's: of the daemon, somebody reads its address there.
        with _running(path), redirect_stdout(sys.stderr):
            exec(code, module.__dict__)  # noqa: S102  # running the operator's own file is what a local pack is
        pack = _pack(path, tree, module)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    weakref.finalize(pack, sys.modules.pop, module.__name__, None).atexit = False
    return pack


def describe(pack: str, name: str, function: Callable[..., Any], place: str) -> LocalTool:
    """Returns a function as the tool `name` of `pack`. Raises `PackError` that begins with `place`."""
    description = inspect.getdoc(function) or ""
    if len(description) > MAX_DESCRIPTION:
        raise PackError(f"{place}: the docstring of {name} has more than {MAX_DESCRIPTION} characters")
    arguments = _struct(name, function, place)
    return LocalTool(
        name=name,
        place=place,
        description=description,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        arguments=arguments,
        input_schema=_schema(arguments, function, place),
        entry=entry_of(f"{pack}.{name}", function),
    )


def entry_of(identity: str, function: Callable[..., Any]) -> Entry:
    """Returns what is shown of a function as the tool `identity`, `pack.tool`."""
    return Entry(
        name=identity,
        signature=from_function(identity, function),
        description=summary(function),
        source=LOCAL,
        args=args_from_function(function),
    )


# Files


def _files(patterns: Iterable[str], folder: Path, problems: dict[str, str]) -> Iterator[Path]:
    """Yields each file once, in the order of the patterns and of the alphabet."""
    seen: set[str] = set()
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, root_dir=folder)) if glob.has_magic(pattern) else [pattern]
        for path in (folder / match for match in matches):
            real = os.path.realpath(path)
            if real in seen:
                continue
            if len(seen) == MAX_FILES:
                problems[pattern] = (
                    f"{folder / pattern}: more than {MAX_FILES} files of local packs: the rest is left out"
                )
                return
            seen.add(real)
            yield path


def _compiled(path: Path) -> tuple[ast.Module, CodeType]:
    source = _source(path)
    try:
        # From the text, never by an import: a .pyc is taken for current while size and second of the file are the same.
        tree = ast.parse(source, filename=str(path))
        return tree, compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PackError(f"{path}:{error.lineno or 1}: is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL; brackets without end
        raise PackError(f"{path}:1: is not Python: {error or 'nested too deeply'}") from None


def _source(path: Path) -> bytes:
    try:
        # Not blocking: a pipe would wait for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            source = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror}") from None
    if len(source) > MAX_SOURCE_BYTES:
        raise PackError(f"{path}: is larger than {MAX_SOURCE_BYTES} bytes")
    return source


@contextmanager
def _running(path: Path) -> Iterator[None]:
    """Turns whatever a file raises into a `PackError`, `SystemExit` included: a pack must not end the daemon."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PackError(f"{path}:{_line_in(path, error)}: raises {type(error).__name__}: {_said(error)}") from None


def _line_in(path: Path, error: BaseException) -> int:
    """Returns the line of the file itself where an exception came from, however deep below it was raised."""
    trace: TracebackType | None = error.__traceback__
    line = 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _said(error: BaseException) -> str:
    """Returns the message of an exception in one line; making it may run the file's own code."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return text[:MAX_MESSAGE] or "no message"


def _rivals(same: Sequence[LocalPack]) -> dict[str, str]:
    if len(same) == 1:
        return {}
    places = ", ".join(pack.place for pack in same)
    return {str(pack.path): f"{pack.place}: several files have the pack {pack.name}: {places}" for pack in same}


# What a file says


def _pack(path: Path, tree: ast.Module, module: ModuleType) -> LocalPack:
    place = f"{path}:{_line_of(tree, 'pack')}"
    name = getattr(module, "pack", None)
    if name is None:
        raise PackError(f'{place}: names no pack: write pack = "demo"')
    if not isinstance(name, str) or not re.fullmatch(PACK, name, re.ASCII):
        raise PackError(f"{place}: pack must be a name of 1 to 32 letters, digits, '_' and '-', not {str(name)[:40]!r}")
    tools = {tool: _tool(name, tool, module, path, tree) for tool in _exported(path, tree, module)}
    return LocalPack(name=name, path=path, place=place, tools=tools)


def _exported(path: Path, tree: ast.Module, module: ModuleType) -> Sequence[str]:
    place = f"{path}:{_line_of(tree, '__all__')}"
    names = getattr(module, "__all__", None)
    if names is None:
        raise PackError(f"{place}: has no __all__: it names the functions that are tools")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise PackError(f"{place}: __all__ must be a list of names")
    if len(names) > MAX_TOOLS:
        raise PackError(f"{place}: __all__ has more than {MAX_TOOLS} names")
    if twice := [name for name in names if names.count(name) > 1]:
        raise PackError(f"{place}: __all__ names {twice[0]} twice")
    return names


def _tool(pack: str, name: str, module: ModuleType, path: Path, tree: ast.Module) -> LocalTool:
    function = getattr(module, name, None)
    if function is None:
        raise PackError(f"{path}:{_line_of(tree, '__all__')}: __all__ names {name[:80]!r}, which is not there")
    place = f"{path}:{_line_of(tree, name)}"
    if not re.fullmatch(TOOL, name, re.ASCII) or len(mcp_name(f"{pack}.{name}")) > MAX_MCP_NAME:
        raise PackError(
            f"{place}: {pack}_{name[:80]} cannot be a tool's name: at most {MAX_MCP_NAME} letters, digits and _"
        )
    if not inspect.isfunction(function):
        raise PackError(f"{place}: {name} is no function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PackError(f"{place}: {name} is a generator: a tool returns its result")
    return describe(pack, name, function, place)


def _line_of(tree: ast.Module, name: str) -> int:
    """Returns the line at the top of the file where a name is bound last, 1 where it is not seen there."""
    lines = [node.lineno for node in tree.body if name in _bound_by(node)]
    return lines[-1] if lines else 1


def _bound_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


# What a function says


def _struct(name: str, function: Callable[..., Any], place: str) -> type[Struct]:
    parameters = inspect.signature(function).parameters
    if len(parameters) > MAX_PARAMETERS:
        raise PackError(f"{place}: {name} has more than {MAX_PARAMETERS} parameters")
    hints, described = _hints(name, function, place), _described(function)
    try:
        fields = [_field(parameter, hints, described.get(key, "")) for key, parameter in parameters.items()]
        return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise PackError(f"{place}: {name}: {_said(error)}") from None


def _hints(name: str, function: Callable[..., Any], place: str) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # an annotation in quotes may be anything
        raise PackError(f"{place}: {name}: an annotation cannot be read: {_said(error)}") from None


def _described(function: Callable[..., Any]) -> Mapping[str, str]:
    split = (argument.partition(": ") for argument in args_from_function(function))
    return {name: text for name, _, text in split if text != "(no description)"}


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], description: str) -> tuple[str, Any, Any]:
    if parameter.kind not in _NAMED:
        raise TypeError(f"{parameter} cannot be given by name, as a tool's parameters are")
    if parameter.name.startswith("__"):
        raise TypeError(f"{parameter.name} begins with __, which Python keeps for itself")
    hint = hints.get(parameter.name, Any)
    if parameter.default is None and hint is not Any:
        # `count: int = None` is a habit, and its meaning is clear.
        hint = hint | None
    described = Annotated[hint, Meta(description=description)] if description else hint
    return parameter.name, described, _default(parameter.default)


def _default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    if isinstance(default, list | dict | set):
        # A copy for each call: what one of them does to it is not the next one's business.
        return msgspec.field(default_factory=lambda: copy.deepcopy(default))
    return msgspec.field(default_factory=lambda: default)


def _schema(arguments: type[Struct], function: Callable[..., Any], place: str) -> dict[str, Any]:
    name = arguments.__name__
    try:
        (top,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, ValueError, NameError) as error:
        raise PackError(f"{place}: {name}: a parameter has no JSON Schema: {_said(error)}") from None
    schema: dict[str, Any] = components.pop(top["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    for key, parameter in inspect.signature(function).parameters.items():
        schema["properties"][key] |= _shown_default(parameter.default)
    whole = {**schema, "$defs": components} if components else schema
    if len(msgspec.json.encode(whole)) > MAX_SCHEMA_BYTES:
        raise PackError(f"{place}: {name}: the schema of its parameters is larger than {MAX_SCHEMA_BYTES} bytes")
    return whole


def _shown_default(default: Any) -> dict[str, Any]:
    """Returns a default as a schema has it; one that is no JSON is the function's own business."""
    if default is inspect.Parameter.empty or (isinstance(default, float) and not math.isfinite(default)):
        return {}
    try:
        return {"default": msgspec.json.decode(msgspec.json.encode(default))}
    except (TypeError, ValueError, RecursionError):
        return {}
