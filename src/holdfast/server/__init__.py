"""`holdfast serve`: Lance's REST namespace, rows over HTTP, metrics and pages for people.

    serve(ServerSettings(root="/lake", port=8181))

A server decides nothing by itself and keeps nothing that matters: any number of them on one
root are as good as one, and each may be killed at any moment. What a table's versions are is
decided by its arbiter, as it is for every other writer.

Needs the extra `server`. `async` is used in this folder alone: what blocks runs in bounded
thread pools.
"""

import importlib
from typing import TYPE_CHECKING

from holdfast.server._settings import ServerSettings
from holdfast.server._tokens import Role, Tokens, new_secret, token_line

if TYPE_CHECKING:
    from holdfast.server._run import serve

__all__ = ["Role", "ServerSettings", "Tokens", "new_secret", "serve", "token_line"]


def __getattr__(name: str) -> object:
    """Load the server, and the web libraries with it, when it is first asked for."""
    if name != "serve":
        raise AttributeError(f"module 'holdfast.server' has no attribute {name!r}")
    return importlib.import_module("holdfast.server._run").serve
