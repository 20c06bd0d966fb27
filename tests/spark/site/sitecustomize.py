"""Faults in Spark's Python processes: each imports this file, and does what a file says.

`HOLDFAST_TEST_FAULT` names a file. While it is there, its text is what goes wrong with statements
that change rows: see `spark.sql_faults`. Nothing is loaded before a process needs it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any

_NAME = "holdfast.spark._sql_change"


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_install(module: Any) -> None:
            execute(module)
            from spark import sql_faults

            sql_faults.install(module.ChangeWriter)

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


if os.environ.get("HOLDFAST_TEST_FAULT"):
    sys.meta_path.insert(0, _Hook())
