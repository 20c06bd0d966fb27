"""`holdfast completion bash|zsh|fish`: a script that completes commands, options and paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from holdfast.cli._arguments import add_json
from holdfast.cli._output import Exit, print_result

_SHELLS = ("bash", "fish", "zsh")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Print a script that completes commands and options. bash: "
        'eval "$(holdfast completion bash)"; zsh: the same with zsh; fish: holdfast completion '
        "fish | source.",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=_SHELLS)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the script."""
    from holdfast.cli._main import make_parser  # noqa: PLC0415 - it loads this module

    words = dict(_words(make_parser([], whole=True), ()))
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](words)
    shown = {"shell": arguments.shell, "script": script}
    print_result(shown, script, as_json=arguments.json)
    return Exit.OK


def _words(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield, for every command, what may come behind it."""
    options = [word for action in parser._actions for word in action.option_strings]  # noqa: SLF001
    verbs: list[str] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, below in action.choices.items():
                verbs.append(name)
                yield from _words(below, (*path, name))
        elif action.choices:
            verbs += [str(choice) for choice in action.choices]
    yield path, [*verbs, *(word for word in options if word.startswith("--"))]


def _bash(words: dict[tuple[str, ...], list[str]]) -> str:
    cases = [
        f'    "{" ".join(path)}") words="{" ".join(following)}" ;;'
        for path, following in sorted(words.items())
    ]
    nouns = "|".join(sorted({path[0] for path in words if len(path) > 1}))
    return "\n".join(
        (
            "_holdfast() {",
            '  local word path="" words="" index=1 here="${COMP_WORDS[COMP_CWORD]}"',
            "  while [ $index -lt $COMP_CWORD ]; do",
            '    word="${COMP_WORDS[$index]}"; index=$((index + 1))',
            '    case "$word" in -*) continue ;; esac',
            '    if [ -z "$path" ]; then path="$word"; continue; fi',
            f'    case "$path" in {nouns}) path="$path $word"; break ;; *) break ;; esac',
            "  done",
            '  case "$path" in',
            *cases,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$here"))',
            '  case "$here" in -*) ;; *) COMPREPLY+=($(compgen -f -- "$here")) ;; esac',
            "}",
            "complete -o filenames -F _holdfast holdfast",
        )
    )


def _zsh(words: dict[tuple[str, ...], list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: dict[tuple[str, ...], list[str]]) -> str:
    lines = []
    for path, following in sorted(words.items()):
        seen = " ".join(path)
        when = f"'__fish_seen_subcommand_from {seen}'" if path else "__fish_use_subcommand"
        if len(path) > 1:
            parts = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path)
            when = f"'{parts}'"
        plain = " ".join(word for word in following if not word.startswith("--"))
        if plain:
            lines.append(f"complete -c holdfast -n {when} -a '{plain}'")
        lines += [
            f"complete -c holdfast -n {when} -l {word[2:]}"
            for word in following
            if word.startswith("--")
        ]
    return "\n".join(lines)
