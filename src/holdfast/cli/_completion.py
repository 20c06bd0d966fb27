"""`holdfast completion bash|zsh|fish`: what a shell needs to complete commands and options."""

from __future__ import annotations

from click.shell_completion import get_completion_class

from holdfast.cli._main import COMPLETE_VARIABLE, ROOT
from holdfast.cli._output import Exit, print_result
from holdfast.errors import InvalidInputError


def run(shell: str) -> Exit:
    """Print the script."""
    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidInputError("this shell is not known", shell=shell)
    script = kind(ROOT, {}, "holdfast", COMPLETE_VARIABLE).source()
    print_result({"shell": shell, "script": script}, script)
    return Exit.OK
