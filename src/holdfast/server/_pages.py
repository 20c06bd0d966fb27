"""Pages for people: read-only, drawn here, nothing loaded from elsewhere, no JavaScript.

| path          | shows                                                                    |
|---------------|--------------------------------------------------------------------------|
| `/`           | the tables of the root                                                   |
| `/table/ID`   | one table: history, fragments, shards, indexes, checks, schema, snippets |
| `/login`      | a form for a token, on a server that has tokens                          |

Nothing is computed per view but one page of history and a preview of rows.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Protocol
from urllib.parse import parse_qs, quote

import pyarrow as pa
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from holdfast import Table, __version__
from holdfast._clock import Clock
from holdfast.errors import HoldfastError, InvalidInputError, NotFoundError, StaleHandleError
from holdfast.server import _routes as routes
from holdfast.server import _views as views
from holdfast.server._answers import Answer, Call
from holdfast.server._looks import MOST_TABLES, Id, Looks, find_tables
from holdfast.server._metrics import Metrics
from holdfast.server._sessions import end_cookies, make_cookie, read_cookie
from holdfast.server._settings import ServerSettings
from holdfast.server._snippets import snippets
from holdfast.server._tables import OpenTables
from holdfast.server._writers import ShardWriters, is_key

_HTML = "text/html; charset=utf-8"
_PER_PAGE = 50
_VERSIONS_PER_PAGE = 20
_MAX_PAGES = 50
_PREVIEW_ROWS = 10
_STATIC = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}


class PageContext(Protocol):
    """What the pages are made from."""

    settings: ServerSettings
    namespace: Any
    tables: OpenTables
    looks: Looks
    writers: ShardWriters
    metrics: Metrics
    clock: Clock
    started: float


class Pages:
    """The pages of one server."""

    def __init__(self, here: PageContext) -> None:
        self._here = here
        self._folder = files("holdfast.server")
        self._environment = Environment(
            loader=FunctionLoader(self._template),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            size=views.size,
            number=views.number,
            count=views.count,
            utc=views.utc,
            cell=views.cell,
            age=self._age,
            span=views.span,
        )
        self._environment.globals.update(
            prefix=here.settings.root_path, release=__version__, root=here.settings.root
        )

    def answer(self, method: str, path: bytes, call: Call) -> Answer:
        """Answer a browser; what is wrong is a page, too."""
        try:
            return self._route(method, path.decode("ascii", "replace"), call)
        except NotFoundError as error:
            return self._page("error.html", status=404, title="Not found", text=str(error))
        except InvalidInputError as error:
            return self._page("error.html", status=400, title="Not understood", text=str(error))
        except HoldfastError as error:
            return self._page("error.html", status=503, title="Not now", text=str(error))

    def _route(self, method: str, path: str, call: Call) -> Answer:
        folder, _, name = path.lstrip("/").partition("/")
        if folder == "static" and name in _STATIC and method in {"GET", "HEAD"}:
            return self._static(name)
        if path in {"/login", "/logout"} and method in {"GET", "POST"}:
            return self._login(method, call) if path == "/login" else self._logout(call)
        if path != "/" and folder != "table":
            raise NotFoundError("there is no such page")
        if method not in {"GET", "HEAD"}:
            return Answer(status=405, headers={"allow": "GET, HEAD"}, content_type=_HTML)
        if not self._may_look(call):
            return _redirect(f"{self._here.settings.root_path}/login")
        table_id = routes.parse_id(name.encode(), "$")
        return self._root(call) if path == "/" else self._table(table_id, call)

    # What is shown

    def _root(self, call: Call) -> Answer:
        table_ids = find_tables(self._here.namespace)
        page, pages = _page_of(call, len(table_ids), _PER_PAGE)
        shown = table_ids[(page - 1) * _PER_PAGE : page * _PER_PAGE]
        looks = []
        for table_id in shown:
            try:
                looks.append((table_id, self._here.looks.summary(table_id)))
            except NotFoundError:  # dropped since it was listed
                continue
        seen = [look.seen for _, look in looks if look.seen is not None]
        commits = self._here.metrics.commits
        return self._page(
            "root.html",
            title="Tables",
            tables=[
                {"id": table_id, "name": ".".join(table_id), "path": _path(table_id), "look": look}
                for table_id, look in looks
            ],
            count=len(table_ids),
            most=MOST_TABLES,
            rows=sum(one.status.rows for one in seen),
            bytes=sum(one.size for one in seen),
            page=page,
            pages=pages,
            commit_count=len(commits),
            charts=self._charts(None),
            authenticated=self._here.settings.tokens is not None,
        )

    def _table(self, table_id: Id, call: Call) -> Answer:
        if not table_id:
            raise NotFoundError("there is no such table")
        self._here.namespace.location(table_id)  # refuses names that cannot be
        look = self._here.looks.summary(table_id)
        page, _ = _page_of(call, _MAX_PAGES * _VERSIONS_PER_PAGE, _VERSIONS_PER_PAGE)
        readable = look.seen is not None and look.seen.problem is None
        details = self._details(table_id, page, call) if readable else {}
        return self._page(
            "table.html",
            title=".".join(table_id),
            id=table_id,
            path=_path(table_id),
            look=look,
            page=page,
            check=self._here.looks.check(table_id) if look.problem is None else None,
            owner=(
                self._here.writers.owner(table_id)
                if look.seen is not None and look.seen.status.shards
                else None
            ),
            charts=self._charts(".".join(table_id)),
            fragments_chart=(
                "" if look.seen is None else Markup(views.fragments_chart(look.seen.fragment_sizes))  # noqa: S704 - made by us, every text in it escaped
            ),
            authenticated=self._here.settings.tokens is not None,
            **details,
        )

    def _details(self, table_id: Id, page: int, call: Call) -> dict[str, Any]:
        """Return what is read anew for a view: some history, a few rows, indexes."""
        try:
            table = self._here.tables.open(table_id)
            details = self._read_details(table, page)
        except StaleHandleError:
            self._here.tables.forget(table_id)
            table = self._here.tables.open(table_id)
            details = self._read_details(table, page)
        return {**details, "snippets": self._snippets(table_id, table.schema, call)}

    def _read_details(self, table: Table, page: int) -> dict[str, Any]:
        last = page * _VERSIONS_PER_PAGE
        history = table.history(last + 1)
        first = last - _VERSIONS_PER_PAGE
        befores = [*history[first + 1 :], None]
        schema = table.schema
        keys = {field.name for field in schema if is_key(field)}
        try:
            preview: Any = table.to_table(limit=_PREVIEW_ROWS).to_pylist()
            preview_problem = None
        except HoldfastError as error:
            preview, preview_problem = [], str(error)
        return {
            "history": [
                {"info": info, "added": info.rows - before.rows if before else None}
                for info, before in zip(history[first:last], befores, strict=False)
            ],
            "more": len(history) > last,
            "fields": [
                {
                    "name": field.name,
                    "type": str(field.type),
                    "nullable": field.nullable,
                    "key": field.name in keys,
                }
                for field in schema
            ],
            "preview": preview,
            "preview_problem": preview_problem,
            "indexes": [one for one in table.indexes() if one.columns],
            "builds": table.index_builds(),
        }

    def _snippets(self, table_id: Id, schema: pa.Schema, call: Call) -> list[tuple[str, str]]:
        settings = self._here.settings
        scheme = "http" if settings.certificate is None else "https"
        host = call.headers.get("host", "127.0.0.1:8181")
        return snippets(
            table_id,
            schema,
            url=f"{scheme}://{host}{settings.root_path}",
            location=self._here.namespace.location(table_id),
            path=_path(table_id),
            with_token=settings.tokens is not None,
        )

    def _charts(self, table: str | None) -> dict[str, Markup]:
        commits: Any = self._here.metrics.commits
        if table is not None:
            commits = [one for one in list(commits) if one.table == table]
        made = views.charts(commits, self._here.started, self._here.clock)
        return {name: Markup(svg) for name, svg in made.items()}  # noqa: S704 - made by us, every text in it escaped

    # Who may look

    def _may_look(self, call: Call) -> bool:
        tokens = self._here.settings.tokens
        if tokens is None:
            return True
        return read_cookie(tokens, call.headers.get("cookie", ""), self._here.clock) is not None

    def _login(self, method: str, call: Call) -> Answer:
        settings = self._here.settings
        if settings.tokens is None:
            return _redirect(f"{settings.root_path}/")
        if method == "GET":
            return self._page("login.html", title="Log in", wrong=False)
        try:
            form = parse_qs(call.body.decode("ascii"), max_num_fields=10)
        except ValueError:
            form = {}
        token = form.get("token", [""])[0].strip()
        cookie = make_cookie(
            settings.tokens, token, self._here.clock, path=self._cookie_path, secure=self._secure
        )
        if cookie is None:
            return self._page("login.html", status=401, title="Log in", wrong=True)
        return _redirect(f"{settings.root_path}/", {"set-cookie": cookie})

    def _logout(self, call: Call) -> Answer:
        """End a session; an answer ends one cookie, so whoever has several is sent here again."""
        settings = self._here.settings
        if settings.tokens is None:
            return _redirect(f"{settings.root_path}/")
        cookies = list(
            end_cookies(
                settings.tokens,
                call.headers.get("cookie", ""),
                self._here.clock,
                path=self._cookie_path,
                secure=self._secure,
            )
        )
        following = "/logout" if len(cookies) > 1 else "/login"
        headers = {"set-cookie": cookies[0]} if cookies else {}
        return _redirect(f"{settings.root_path}{following}", headers)

    @property
    def _secure(self) -> bool:
        return self._here.settings.certificate is not None

    @property
    def _cookie_path(self) -> str:
        return f"{self._here.settings.root_path}/"

    # How it is drawn

    def _page(self, template: str, *, status: int = 200, **values: Any) -> Answer:  # noqa: ANN401
        inside = bool(values.setdefault("authenticated", False))
        values["show_root"] = inside or self._here.settings.tokens is None
        text = self._environment.get_template(template).render(now=self._here.clock.now(), **values)
        return Answer(status=status, body=text.encode("utf-8", "replace"), content_type=_HTML)

    def _age(self, at: Any) -> str:  # noqa: ANN401 - a time
        return views.age(self._here.clock.now() - views.seconds_of(at))

    def _template(self, name: str) -> str:
        return (self._folder / "templates" / name).read_text(encoding="utf-8")

    def _static(self, name: str) -> Answer:
        body = (self._folder / "static" / name).read_bytes()
        headers = {"cache-control": "public, max-age=3600"}
        return Answer(body=body, content_type=_STATIC[name], headers=headers)


def _redirect(path: str, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status=303, headers={"location": path, **(headers or {})}, content_type=_HTML)


def _path(table_id: Id) -> str:
    return quote("$".join(table_id), safe="$")


def _page_of(call: Call, count: int, per_page: int) -> tuple[int, int]:
    """Return which page is asked for, and how many there are."""
    pages = max(1, -(-count // per_page))
    text = call.query.get("page", "1")
    page = int(text) if text.isdecimal() and len(text) < 6 else 1  # noqa: PLR2004 - digits
    return min(max(page, 1), pages), pages
