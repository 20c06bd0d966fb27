"""Mutants: production modules with one safeguard taken out, to see that a test notices.

    careless = mutate("holdfast.arbiter._conditional", "if sent:", "if False:")
    careless.ConditionalPut(...)

The replaced text must occur exactly once, so a mutant that no longer fits its module fails
loudly instead of testing nothing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types


def mutate(module: str, *replacements: tuple[str, str]) -> types.ModuleType:
    """Return a fresh copy of a module with texts of its source replaced.

    Raises:
        LookupError: a text does not occur exactly once.
    """
    original = importlib.import_module(module)
    source = inspect.getsource(original)
    for old, new in replacements:
        if source.count(old) != 1:
            raise LookupError(f"{module} has {source.count(old)} times: {old!r}")
        source = source.replace(old, new)
    mutant = types.ModuleType(f"{module}_mutant")
    sys.modules[mutant.__name__] = mutant  # where dataclasses look their own module up
    exec(compile(source, f"<mutant of {module}>", "exec"), mutant.__dict__)  # noqa: S102
    return mutant
