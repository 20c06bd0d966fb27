"""The page of the Python API, made from the public names, their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

MODULES = (
    "holdfast",
    "holdfast.spark",
    "holdfast.upkeep",
    "holdfast.arbiter",
    "holdfast.storage",
    "holdfast.testing",
)
"""The public modules whose names are listed; errors, events and options have pages of their own."""

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Warning|Note):$")
_ITEM = re.compile(r"^([\w*, `.]+):\s+(.*)$")
_MANY_ITEMS = ("Args", "Raises", "Attributes")


def api_page(note: str) -> str:
    """Return the page."""
    lines = [
        "# Python API",
        "",
        note,
        "The public names, from their docstrings. All else may change without notice. See also",
        "[errors](errors.md), [events](events.md) and [Spark's options](spark-options.md).",
    ]
    shown: set[int] = set()
    for name in MODULES:
        lines += ["", f"## {name}", "", *_describe_module(importlib.import_module(name), shown)]
    return "\n".join(lines).rstrip() + "\n"


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield name and attribute of the public methods and properties of a class, inherited too."""
    for name in sorted(dir(cls)):
        if name.startswith(("_", "test_")):  # the tests of a suite are not for calling
            continue
        attribute = inspect.getattr_static(cls, name)
        if isinstance(attribute, staticmethod | classmethod):
            attribute = attribute.__func__
        home = getattr(attribute, "__module__", None) or getattr(
            getattr(attribute, "fget", None), "__module__", ""
        )
        if str(home).startswith("holdfast"):
            yield name, attribute


def _describe_module(module: ModuleType, shown: set[int]) -> Iterator[str]:
    yield from _render(inspect.getdoc(module) or "")
    values = []
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            if id(thing) in shown:
                values.append(name)
                continue
            shown.add(id(thing))
            yield from _describe(name, thing)
        else:
            values.append(name)
    if values:
        yield from ("", "Also here: " + ", ".join(f"`{name}`" for name in values) + ".")


def _describe(name: str, thing: object) -> Iterator[str]:
    yield from ("", f"### `{name}`", "")
    if not inspect.isclass(thing):
        assert callable(thing)  # noqa: S101 - a function
        yield from (*_code(f"{name}{_signature(thing)}"), "")
        yield from _render(inspect.getdoc(thing) or "")
        return
    yield from _render(_own_doc(thing))
    for method, attribute in public_methods(thing):
        yield ""
        if isinstance(attribute, property):
            yield f"#### `{name}.{method}`"
            yield ""
            yield from _render(inspect.getdoc(attribute) or "")
        elif callable(attribute):
            yield f"#### `{name}.{method}()`"
            yield ""
            yield from (*_code(f"{method}{_signature(attribute)}"), "")
            yield from _render(inspect.getdoc(attribute) or "")


def _own_doc(cls: type) -> str:
    text = inspect.getdoc(cls) or ""
    return "" if text.startswith(f"{cls.__name__}(") else text  # made by dataclasses


def _signature(function: Callable[..., object]) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in {"self", "cls"}
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"<(?:[\w.]+ )?([\w.]+)[^>]*>", r"\1", text)  # no addresses of objects


def _code(call: str) -> Iterator[str]:
    yield "```text"
    while len(call) > 96:  # noqa: PLR2004 - the width of the docs
        cut = call.rfind(", ", 0, 95) + 1
        if not cut:
            break
        yield call[:cut]
        call = "    " + call[cut:].strip()
    yield call
    yield "```"


def _render(docstring: str) -> Iterator[str]:
    """Yield Markdown for a docstring: its sections become lists."""
    section = ""
    for line in docstring.splitlines():
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
            yield from (f"**{section}**", "")
        elif not section or not line.startswith("    "):
            section = "" if line and not line.startswith("    ") else section
            yield line
        else:
            yield _render_item(section, line[4:])


def _render_item(section: str, line: str) -> str:
    item = _ITEM.match(line)
    if section in _MANY_ITEMS and item and not line.startswith(" "):
        return f"- `{item[1].strip('`')}`: {item[2]}"
    return f"  {line.strip()}" if section in _MANY_ITEMS else line
