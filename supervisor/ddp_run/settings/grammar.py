"""The grammar of the command line: argparse's, over the installed torch's table of options. Pure.

argparse itself reads the words, so abbreviations, clusters, `--`, the rest of the line and each Python version's
habits are those of torchrun's parser. Here it converts, prints and exits nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ddp_run.settings.other_launchers import foreign_option, move_behind_script, translate_options
from ddp_run.settings.table import Owner, Row
from ddp_run.values.problem import Problem, nearest


class HelpWanted(Exception):
    """`-h` or `--help` stands before the script. `whole`: the long help, which lists every option."""

    def __init__(self, whole: bool = True) -> None:
        super().__init__()
        self.whole = whole


@dataclass(frozen=True, slots=True)
class Given:
    """An option on the command line. `word` is the index of the word that holds the value."""

    row: Row
    text: str | None
    word: int


@dataclass(frozen=True, slots=True)
class Words:
    """What the words of a command line mean. Options keep their order; the last of the same name counts."""

    given: tuple[Given, ...]
    script: str | None = None
    script_word: int | None = None
    script_args: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def last(self, dest: str) -> Given | None:
        """The occurrence that counts."""
        return next((each for each in reversed(self.given) if each.row.dest == dest), None)


def read_words(argv: Sequence[str], rows: Sequence[Row]) -> Words:
    """Split a command line into options, script and the script's arguments.

    Grammatical mistakes are in `problems`; values are not looked at. Raises `HelpWanted`.
    """
    parser = _Parser(rows)
    try:
        space, unknown = parser.parse_known_args(list(argv))
    except (_Stopped, argparse.ArgumentError) as error:
        if not isinstance(error, _Stopped):
            error = parser.explain(str(error), tuple((error.argument_name or "").split("/")))
        given, cursor = _locate(argv, parser.taken)
        return Words(given, problems=(_grammar_problem(error, argv, cursor),))
    given, _ = _locate(argv, parser.taken)
    script = getattr(space, "training_script", None)
    rest = tuple(getattr(space, "training_script_args", None) or ())
    last = len(argv) - len(rest) - 1
    word = None if script is None else max(index for index in range(last + 1) if argv[index] == script)
    return Words(given, script, word, rest, _unknown_problems(argv, unknown, rows))


# --------------------------------------------------------------------------------------- argparse, tamed


class _Stopped(Exception):
    """argparse gave up. `flags`: the option it was about, or the candidates of an ambiguous abbreviation."""

    def __init__(self, kind: str, flags: tuple[str, ...], word: str | None = None, text: str = "") -> None:
        super().__init__(kind)
        self.kind, self.flags, self.word, self.text = kind, flags, word, text


class _Take(argparse.Action):
    """Notes an occurrence."""

    def __init__(self, *args: Any, row: Row, **words: Any) -> None:
        super().__init__(*args, **words)
        self.row = row

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **_words: Any) -> None:
        _, text, flag = args
        assert isinstance(parser, _Parser)
        if self.row.prints_and_exits:
            raise _Stopped("answered", (flag,), None, text)
        parser.taken.append((self.row, flag, text if self.row.takes_value else None))


class _Help(argparse.Action):
    def __call__(self, *args: Any, **_words: Any) -> NoReturn:
        raise HelpWanted(whole=args[-1] != "-h")


class _Ambiguous(argparse.Action):
    """Stands for an abbreviation of several of ddp-run's options; only a mistake if it is not the script's."""

    def __call__(self, *args: Any, **_words: Any) -> NoReturn:
        raise _Stopped("ambiguous", tuple(self.option_strings), args[-1])


class _Parser(argparse.ArgumentParser):
    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(prog="ddp-run", add_help=False, exit_on_error=False, argument_default=argparse.SUPPRESS)
        self.taken: list[tuple[Row, str, str | None]] = []
        self._torch: set[argparse.Action] = {self.add_argument("-h", "--help", action=_Help, nargs=0)}
        self._ambiguous: list[tuple[str, tuple[str, ...]]] = []
        for row in rows:
            nargs = row.nargs if row.takes_value else 0
            action = self.add_argument(*row.flags, action=_Take, dest=row.dest, nargs=nargs, row=row)
            if row.owner is Owner.TORCH:
                self._torch.add(action)
        # Not required: a missing script is reported together with everything else.
        self.add_argument("training_script").required = False
        self.add_argument("training_script_args", nargs=argparse.REMAINDER).required = False

    def error(self, message: str) -> NoReturn:
        raise self.explain(message)

    def explain(self, message: str, flags: tuple[str, ...] = ()) -> _Stopped:
        """What argparse's message is about; `flags`: the option, if argparse names it."""
        for word, candidates in self._ambiguous:
            if f": {word} could" in message:
                return _Stopped("ambiguous", candidates, word)
        return _Stopped("other", flags, None, message)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Candidates for an abbreviation: torch's options win, ours count if torch has none."""
        found: list[Any] = super()._get_option_tuples(option_string)
        torch = [each for each in found if each[0] in self._torch]
        if torch or not found:
            if len(torch) > 1:
                self._ambiguous.append((option_string, tuple(each[1] for each in torch)))
            return torch
        distinct = list({each[0]: each for each in reversed(found)}.values())
        if len(distinct) == 1:
            return distinct
        flags = [action.option_strings[0] for action, *_ in reversed(distinct)]
        return [(_Ambiguous(flags, "ambiguous", nargs="?"), option_string, *found[0][2:])]

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return int(super()._match_argument(action, arg_strings_pattern))
        except argparse.ArgumentError:
            raise _Stopped("valueless", tuple(action.option_strings)) from None


# -------------------------------------------------------------------------------------- finding the words


def _locate(argv: Sequence[str], taken: Sequence[tuple[Row, str, str | None]]) -> tuple[tuple[Given, ...], int]:
    """The occurrences with the index of their words, and the index of the first word after them."""
    given: list[Given] = []
    cursor, cluster = 0, ""
    for row, flag, text in taken:
        if not cluster:
            cursor = _next_word(argv, cursor, flag)
        separate = text is not None and _stands_alone(argv[cursor], flag, cluster)
        given.append(Given(row, text, cursor + separate))
        if text is not None or argv[cursor].startswith("--"):
            cluster = ""
        else:  # what is left of `-mr3` after its first letter
            cluster = cluster[1:] if cluster else argv[cursor][2:]
        if not cluster:
            cursor += 1 + separate
    return tuple(given), cursor


def _next_word(argv: Sequence[str], start: int, *flags: str) -> int:
    found = (index for index in range(start, len(argv)) if any(_means(argv[index], flag) for flag in flags))
    return next(found, min(start, len(argv) - 1))


def _means(word: str, flag: str) -> bool:
    if len(word) > 1 and word[0] == "-" and word[1] != "-":
        return word[:2] == flag[:2] or flag.startswith(word.split("=", 1)[0])
    return len(word) > 2 and flag.startswith(word.split("=", 1)[0])


def _stands_alone(word: str, flag: str, cluster: str) -> bool:
    """Whether the word is only the option, so that its value is the next word."""
    if cluster:
        return len(cluster) == 1
    if word.startswith("--"):
        return "=" not in word
    return word == flag or not word.startswith(flag)


# ------------------------------------------------------------------------------------ explaining mistakes


def _grammar_problem(stopped: _Stopped, argv: Sequence[str], cursor: int) -> Problem:
    word = _next_word(argv, cursor, *stopped.flags)
    if stopped.kind == "ambiguous":
        word = argv.index(stopped.word) if stopped.word in argv else word
        value = "".join(argv[word].partition("=")[1:])
        names = tuple(dict.fromkeys(flag.replace("_", "-") + value for flag in stopped.flags))
        # Before Python 3.14, two spellings of one option are as ambiguous to argparse as two options.
        label = f"fits {' and '.join(stopped.flags)}"
        return Problem("DDP101", f"ambiguous abbreviation {argv[word]}", word, label, helps=(" or ".join(names),))
    if stopped.kind == "valueless":
        name = next((flag for flag in stopped.flags if flag.startswith("--")), "this option")
        both = (f"{name}=VALUE", "is the variable after it empty?")
        return Problem("DDP101", f"{name} needs a value", word, "expected a value after it", helps=both)
    if stopped.kind == "answered":
        (name,) = stopped.flags
        helps = (f"torchrun {name} {stopped.text}",)
        return Problem("DDP101", f"{name} is an option of torchrun itself", word, "starts no job", helps=helps)
    if "ignored explicit argument" in stopped.text:
        return Problem("DDP101", f"{argv[word]} takes no value", word, "its name alone turns it on")
    return Problem("DDP101", stopped.text, word)


UNKNOWN_OPTION = "unknown option"
_UNKNOWN = "not an option of ddp-run or of the installed torchrun"
_SCRIPTS = f"{_UNKNOWN}; is it the script's?"
_SAID_OFTEN = dict.fromkeys(("nprocs", "num-procs", "procs-per-node"), "--nproc-per-node")
"""Names that no launcher has, but people type."""


def _unknown_problems(argv: Sequence[str], unknown: Sequence[str], rows: Sequence[Row]) -> tuple[Problem, ...]:
    places: list[tuple[str, int]] = []
    start = 0
    for text in unknown:
        word = argv.index(text, start) if text in argv[start:] else start
        start = word + 1
        places.append((text, word))
    for text, word in places:
        if foreign_option(text):
            return (_foreign_problem(text, word, argv, rows),)
    names = {row.key: row.name for row in rows} | _SAID_OFTEN
    moved = move_behind_script(argv, unknown, rows)
    notes = ("the script's own options go after it",) if moved else ()
    problems: list[Problem] = []
    for text, word in places:
        name, _, value = text.partition("=")
        title, label = f"{UNKNOWN_OPTION} {name}", _UNKNOWN
        helps: tuple[str, ...] = ()
        close = dict.fromkeys(names[each] for each in nearest(name.lstrip("-").replace("_", "-"), names))
        if close:
            value = value or "".join(argv[word + 1 : word + 2])
            number = f"={value}" if value.isdigit() else ""
            helps = (f"did you mean {' or '.join(each + number for each in close)}?",)
        elif moved is None:
            helps = ("ddp-run --help   # all options",)
        elif not any(problem.label == _SCRIPTS for problem in problems):
            label, helps = _SCRIPTS, (moved,)
        problems.append(Problem("DDP101", title, word, label, notes=notes if helps else (), helps=helps))
    if problems and problems[0].label == _SCRIPTS and all(not each.helps for each in problems[1:]):
        return tuple(problems[:1])
    return tuple(problems)


def _foreign_problem(text: str, word: int, argv: Sequence[str], rows: Sequence[Row]) -> Problem:
    found = translate_options(argv, rows)
    name = text.partition("=")[0]
    notes = found.notes
    if name.replace("_", "-") == "--use-env":
        notes = ("it is always on here, as under torchrun: ranks find LOCAL_RANK in their environment",)
    title = f"{name} is an option of {foreign_option(text)}"
    return Problem("DDP101", title, word, "not an option here", notes=notes, helps=(found.command,))
