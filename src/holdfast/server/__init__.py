"""`holdfast serve`: Lance's REST namespace, rows over HTTP, metrics and pages for people.

    serve(ServerSettings(root="/lake", port=8181))

A server decides nothing by itself and keeps nothing that matters: any number of them on one
root are as good as one, and each may be killed at any moment. What a table's versions are is
decided by its arbiter, as it is for every other writer.

Needs the extra `server`. `async` is used in this folder alone: what blocks runs in bounded
thread pools.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names
from holdfast.server._settings import ServerSettings
from holdfast.server._tokens import Role, Tokens, new_secret, token_line

if TYPE_CHECKING:
    from holdfast.server._run import serve

__all__ = ["Role", "ServerSettings", "Tokens", "new_secret", "serve", "token_line"]


__getattr__ = load_names(__name__, {"_run": "serve"})  # and the web libraries with it
