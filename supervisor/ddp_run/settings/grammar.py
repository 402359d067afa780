"""The grammar of the command line: argparse's, over the installed torch's table of options. Pure.

argparse itself reads the words. So abbreviations, clusters, `--`, the rest of the line and each Python version's habits
are those of torchrun's parser. Here it converts no value, prints nothing and never exits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, SupportsIndex, cast

from ddp_run.settings.other_launchers import foreign_option, move_behind_script, translate_options
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, Refused, nearest


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


def read_words(argv: Sequence[str], rows: Sequence[Row]) -> Words:
    """Split a command line into options, script and the script's arguments.

    Grammatical mistakes are in `problems`; values are not looked at. Raises `HelpWanted`.
    """
    words = [_Word(text, at) for at, text in enumerate(argv)]
    parser = _Parser(rows, words)
    try:
        space, unknown = parser.parse_known_args(words)
    except Refused as refused:
        return Words(tuple(parser.given), problems=refused.problems)
    except argparse.ArgumentError as error:
        return Words(tuple(parser.given), problems=(parser.problem_of(error),))
    script = getattr(space, "training_script", None)
    rest = tuple(map(str, getattr(space, "training_script_args", ())))
    problems = _unknown_problems(words, cast("list[_Word]", unknown), rows)
    if script is None:
        return Words(tuple(parser.given), problems=problems)
    return Words(tuple(parser.given), str(script), script.at, rest, problems)


# --------------------------------------------------------------------------------------- argparse, tamed


class _Word(str):
    """A word of the command line, or what argparse has cut from it. `at`: the word's index."""

    at: int

    def __new__(cls, text: str, at: int) -> _Word:
        word = super().__new__(cls, text)
        word.at = at
        return word

    def __getitem__(self, key: SupportsIndex | slice) -> _Word:
        return _Word(super().__getitem__(key), self.at)

    def __add__(self, text: str) -> _Word:
        return _Word(super().__add__(text), self.at)

    def partition(self, separator: str) -> tuple[str, str, str]:
        before, found, after = super().partition(separator)
        return _Word(before, self.at), _Word(found, self.at), _Word(after, self.at)

    def split(self, separator: str | None = None, most: SupportsIndex = -1) -> list[str]:
        return [_Word(part, self.at) for part in super().split(separator, most)]


class _Call(argparse.Action):
    """Calls `then` with an occurrence: the text of its value, and the option as it is meant."""

    def __init__(self, *args: Any, then: Callable[[_Word, _Word], None], **words: Any) -> None:
        super().__init__(*args, **words)
        self.then = then

    def __call__(self, _parser: object, _space: object, *args: Any) -> None:
        self.then(*args)


class _Parser(argparse.ArgumentParser):
    def __init__(self, rows: Sequence[Row], words: Sequence[_Word]) -> None:
        super().__init__(prog="ddp-run", add_help=False, exit_on_error=False, argument_default=argparse.SUPPRESS)
        self.given: list[Given] = []
        self._words = words
        self._torch: set[argparse.Action] = {
            self.add_argument("-h", "--help", action=_Call, nargs=0, then=self._want_help)
        }
        self._ambiguous: Problem | None = None
        """The first abbreviation of several of torch's options; some versions of argparse accept it in the script's."""
        for row in rows:
            nargs = None if row.takes_value else 0
            action = self.add_argument(
                *row.flags, action=_Call, dest=row.dest, nargs=nargs, then=partial(self._take, row)
            )
            if not row.is_ours:
                self._torch.add(action)
        # Not required: a missing script is reported together with everything else.
        self.add_argument("training_script").required = False
        self.add_argument("training_script_args", nargs=argparse.REMAINDER).required = False

    def _want_help(self, _text: _Word, flag: _Word) -> None:
        raise HelpWanted(whole=flag != "-h")

    def _take(self, row: Row, text: _Word, flag: _Word) -> None:
        if row.prints_and_exits:
            title, helps = f"{flag} is an option of torchrun itself", (f"torchrun {flag} {text}",)
            raise Refused((Problem("DDP101", title, flag.at, "starts no job", helps=helps),))
        self.given.append(Given(row, str(text), text.at) if row.takes_value else Given(row, None, flag.at))

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)

    def problem_of(self, error: argparse.ArgumentError) -> Problem:
        """What argparse refused: an abbreviation, or a value for an option that takes none."""
        text = str(error)
        if self._ambiguous is not None and " could match " in text:
            return self._ambiguous
        names = (error.argument_name or "").split("/")
        start = max((each.word for each in self.given), default=-1) + 1
        for word in self._words[start:]:
            if "ignored explicit" in text and any(word[:2] == name or _abbreviates(word, name) for name in names):
                return Problem("DDP101", f"{word} takes no value", word.at, "its name alone turns it on")
        return Problem("DDP101", text)

    def _get_option_tuples(self, option_string: Any) -> list[Any]:
        """Candidates for an abbreviation: torch's options win, ours count if torch has none."""
        found = [
            (each[0], _Word(each[1], option_string.at), *each[2:]) for each in super()._get_option_tuples(option_string)
        ]
        torch = [each for each in found if each[0] in self._torch]
        if torch or not found:
            if len(torch) > 1:
                self._ambiguous = self._ambiguous or _ambiguous(option_string, [each[1] for each in torch])
            return torch
        distinct = list({each[0]: each for each in reversed(found)}.values())
        if len(distinct) == 1:
            return distinct
        flags = [action.option_strings[0] for action, *_ in reversed(distinct)]

        def refuse(_text: _Word, _flag: _Word) -> None:
            raise Refused((_ambiguous(option_string, flags),))

        # It is only a mistake if argparse does not take it for the script's.
        return [(_Call(flags, "ambiguous", nargs="?", then=refuse), option_string, *found[0][2:])]

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return int(super()._match_argument(action, arg_strings_pattern))
        except argparse.ArgumentError:
            name = next((flag for flag in action.option_strings if flag.startswith("--")), "this option")
            helps = (f"{name}=VALUE", "is the variable after it empty?")
            # The pattern has a letter for each word after the option.
            word = len(self._words) - len(arg_strings_pattern) - 1
            problem = Problem("DDP101", f"{name} needs a value", word, "expected a value after it", helps=helps)
            raise Refused((problem,)) from None


# ------------------------------------------------------------------------------------ explaining mistakes


def _abbreviates(word: str, flag: str) -> bool:
    return len(word) > 2 and flag.startswith(word.partition("=")[0])


def _ambiguous(word: _Word, flags: Sequence[str]) -> Problem:
    value = "".join(word.partition("=")[1:])
    names = dict.fromkeys(flag.replace("_", "-") + value for flag in flags)
    # Before Python 3.14, two spellings of one option are as ambiguous to argparse as two options.
    label = f"fits {' and '.join(flags)}"
    return Problem("DDP101", f"ambiguous abbreviation {word}", word.at, label, helps=(" or ".join(names),))


UNKNOWN_OPTION = "unknown option"
_UNKNOWN = "not an option of ddp-run or of the installed torchrun"
_SCRIPTS = f"{_UNKNOWN}; is it the script's?"
_SAID_OFTEN = {**dict.fromkeys(("nprocs", "num-procs", "procs-per-node"), "--nproc-per-node"), "nodes": "--nnodes"}
"""Names that no launcher has, but people type."""


def _unknown_problems(argv: Sequence[str], unknown: Sequence[_Word], rows: Sequence[Row]) -> tuple[Problem, ...]:
    for word in unknown:
        if foreign_option(word):
            return (_foreign_problem(word, argv, rows),)
    names = {row.key: row.name for row in rows} | _SAID_OFTEN
    moved = move_behind_script(argv, unknown, rows)
    notes = ("the script's own options go after it",) if moved else ()
    problems: list[Problem] = []
    for word in unknown:
        name, _, value = word.partition("=")
        label = _UNKNOWN
        key = name.lstrip("-").replace("_", "-")
        close = dict.fromkeys(names[each] for each in ((key,) if key in names else nearest(key, names)))
        if close:
            value = value or "".join(argv[word.at + 1 : word.at + 2])
            number = f"={value}" if value.isdigit() else ""
            help = f"did you mean {' or '.join(each + number for each in close)}?"
        elif moved is None:
            help = "ddp-run --help   # all options"
        elif any(each.label == _SCRIPTS for each in problems):
            continue  # that one's help moves them all
        else:
            label, help = _SCRIPTS, moved
        problems.append(Problem("DDP101", f"{UNKNOWN_OPTION} {name}", word.at, label, notes=notes, helps=(help,)))
    return tuple(problems)


def _foreign_problem(word: _Word, argv: Sequence[str], rows: Sequence[Row]) -> Problem:
    found = translate_options(argv, rows)
    name = word.partition("=")[0]
    notes = found.notes
    if name.replace("_", "-") == "--use-env":
        notes = ("it is always on here, as under torchrun: ranks find LOCAL_RANK in their environment",)
    title = f"{name} is an option of {foreign_option(word)}"
    return Problem("DDP101", title, word.at, "not an option here", notes=notes, helps=(found.command,))
