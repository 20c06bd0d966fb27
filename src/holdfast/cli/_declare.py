"""What commands are made of: how one is declared, and the arguments that several share.

A declaration says which function does the work; its module is loaded only when the command is
called. So help, completion and wrong words on the line never wait for Lance.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from holdfast.cli._output import SESSION
from holdfast.cli._start import INTERRUPTS
from holdfast.errors import InvalidInputError
from holdfast.options import StorageOptions

URL_HELP = "sqlite:, postgresql:, mysql:, redis:, dynamodb: or env:NAME to keep it out of sight"


@dataclass(frozen=True, slots=True)
class Target:
    """The table, or the root, that a command works on."""

    uri: str
    options: StorageOptions
    commit_store: str | None = None


class Formatter(click.HelpFormatter):
    """Help with bold headings, in lower case like the rest."""

    def write_heading(self, heading: str) -> None:
        """Write a heading."""
        self.write(f"{'':>{self.current_indent}}{click.style(heading.lower() + ':', bold=True)}\n")


class Context(click.Context):
    """The context of a command, whose help is ours."""

    formatter_class = Formatter


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, name: str, metavar: str, text: str, **settings: Any) -> None:  # noqa: ANN401 - click's
        super().__init__([name], metavar=metavar, **settings)
        self.text = text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return what help shows."""
        return self.make_metavar(ctx), self.text


class _Helpful(click.Command):
    """A command whose help names its arguments, too."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and let every error of usage know its command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the line of usage."""
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, pieces, prefix="usage: ")

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return `--help`."""
        asked = super().get_help_option(ctx)
        if asked is not None:
            asked.help = "show this help"
        return asked

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options."""
        for title, kind in (("arguments", Argument), ("options", click.Option)):
            shown = [one for one in self.get_params(ctx) if isinstance(one, kind)]
            records = [one.get_help_record(ctx) for one in shown]
            lines = [record for record in records if record is not None]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


class Verb(_Helpful):
    """A command; `work` is the `module:function` that does it."""

    def __init__(
        self, name: str, work: str, text: str, *params: click.Parameter, about: str = ""
    ) -> None:
        super().__init__(name, params=[*params, JSON], help=about or text, short_help=text)
        self.work = work

    def load(self) -> Callable[..., int]:
        """Return the function that does the work."""
        module, _, function = self.work.partition(":")
        loaded: Callable[..., int] = getattr(
            importlib.import_module(f"holdfast.cli.{module}"), function
        )
        return loaded

    def invoke(self, ctx: click.Context) -> int:
        """Do the work, once the table's stores have answered."""
        given: dict[str, Any] = dict(ctx.params)  # Any: what each option gives
        SESSION.as_json = given.pop("json")
        target = None
        if "uri" in given:
            options = storage_options(given.pop("option"))
            target = Target(given.pop("uri"), options, given.pop("commit_store", None))
            given["target"] = target
        work = self.load()
        INTERRUPTS.work()
        stores = [given[name] for name in ("url", "new", "new_commit_store") if given.get(name)]
        if target is not None or stores:
            from holdfast.cli._patience import await_answers  # noqa: PLC0415 - they need it alone

            await_answers(target, stores)
        return work(**given)


class Noun(_Helpful, click.Group):
    """A command with commands below it."""

    def __init__(self, name: str, text: str, *verbs: click.Command, **settings: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(
            name,
            commands=list(verbs),
            help=settings.pop("about", text),
            short_help=text,
            no_args_is_help=False,
            subcommand_metavar="COMMAND ...",
            **settings,
        )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return the commands in the order of their declaration."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        with formatter.section("commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(200)) for name, one in self.commands.items()]
            )
        super().format_options(ctx, formatter)


def value(names: str, metavar: str, text: str, **settings: Any) -> click.Option:  # noqa: ANN401 - click's
    """Declare an option with a value; `names` are words, one without dashes is for Python."""
    return click.Option(names.split(), metavar=metavar, help=text, **settings)


def several(names: str, metavar: str, text: str) -> click.Option:
    """Declare an option that may be repeated."""
    return value(names, metavar, f"{text}; repeat for more", multiple=True)


def flag(names: str, text: str) -> click.Option:
    """Declare an option without a value."""
    return click.Option(names.split(), is_flag=True, help=text)


def one_of(dest: str, words: Mapping[str, str], *, required: bool = False) -> list[click.Option]:
    """Declare flags of which one may be given, or must be."""
    names = [f"--{word}" for word in words]

    def choose(ctx: click.Context, param: click.Parameter, given: object) -> None:
        before = ctx.params.setdefault(dest, None)
        if given and before is not None:
            raise click.UsageError(f"{param.opts[0]} cannot be given with --{before}", ctx)
        if given:
            ctx.params[dest] = param.opts[0][2:]

    def require(ctx: click.Context, param: click.Parameter, given: object) -> None:
        choose(ctx, param, given)
        if ctx.params[dest] is None:
            raise click.UsageError(f"one of {', '.join(names)} is needed", ctx)

    def callback(name: str) -> Callable[[click.Context, click.Parameter, object], None]:
        return require if required and name == names[-1] else choose

    return [
        click.Option([name], is_flag=True, expose_value=False, help=text, callback=callback(name))
        for name, text in zip(names, words.values(), strict=True)
    ]


def table(metavar: str = "URI") -> Sequence[click.Parameter]:
    """Declare a table, or a root, and its storage options."""
    places = "a path, file://, s3://, gs://, az://, cos://, oss://"
    return [Argument("uri", metavar, places, type=click.Path()), OPTIONS]


def storage_options(pairs: Sequence[str]) -> StorageOptions:
    """Return the options behind `KEY=VALUE` arguments.

    Raises:
        InvalidInputError: an argument has no `=`, or a key has two values.
    """
    options: dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        key, equals, value = pair.partition("=")
        if not equals or not key:  # not repeated: it may be a secret without its name
            raise InvalidInputError(f"a storage option is KEY=VALUE; the {number}. is not")
        if options.setdefault(key, value) != value:
            raise InvalidInputError(f"storage option {key!r} is given twice")
    return StorageOptions(options)


JSON = flag("--json", "print one JSON object on stdout")
CONFIRM = flag("--confirm", "do it; without, only say what")
COMMIT_STORE = value("--commit-store", "URL", "the commit store; env:NAME keeps it out of sight")
ALL = flag("--all every_table", "URI is a root: every table below it, folders included")
OPTIONS = several(
    "-o --option", "KEY=VALUE", "a storage option by pylance's name; VALUE may be env:NAME"
)
SHARD = Argument("shard", "SHARD", "unsharded, bucket-N or a shard id; see `holdfast shard ls`")
PLACES = {
    "alias": "the same files, reached in another way: another endpoint, a mount",
    "moved": "the files are here now, and the old place is gone: same table",
    "copied": "both go on: this one gets an id of its own",
}
