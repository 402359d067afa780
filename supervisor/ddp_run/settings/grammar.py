"""The grammar of the command line: argparse's own, over the installed torch's table of options. Pure.

argparse itself reads the words, so abbreviations, clusters, `--`, the rest of the line and the habits of each Python
version are those of torchrun's parser. It converts, prints and exits nothing here.
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
    """`-h` or `--help` stands before the script. `whole`: the long one, which lists every option."""

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
    """What the words of a command line mean. Options keep their order; of two alike the last counts."""

    given: tuple[Given, ...]
    script: str | None
    script_word: int | None
    script_args: tuple[str, ...]
    problems: tuple[Problem, ...] = ()

    def last(self, dest: str) -> Given | None:
        """The occurrence that counts."""
        return next((each for each in reversed(self.given) if each.row.dest == dest), None)


def read_words(argv: Sequence[str], rows: Sequence[Row]) -> Words:
    """Split a command line into options, script and the script's arguments.

    Grammatical mistakes come back as `problems`; values are not looked at. Raises `HelpWanted`.
    """
    parser = _Parser(rows)
    try:
        space, unknown = parser.parse_known_args(list(argv))
    except _Stopped as stopped:
        return _broken_off(stopped, argv, parser)
    except argparse.ArgumentError as error:
        flags = tuple((error.argument_name or "").split("/"))
        return _broken_off(parser.explain(str(error), flags), argv, parser)
    given, _ = _locate(argv, parser.taken)
    rest = tuple(getattr(space, "training_script_args", None) or ())
    script = getattr(space, "training_script", None)
    return Words(
        given,
        script,
        None if script is None else _script_word(argv, script, len(rest)),
        rest,
        _unknown_problems(argv, unknown, rows),
    )


def _broken_off(stopped: _Stopped, argv: Sequence[str], parser: _Parser) -> Words:
    given, cursor = _locate(argv, parser.taken)
    return Words(given, None, None, (), (_grammar_problem(stopped, argv, cursor),))


def _script_word(argv: Sequence[str], script: str, rest: int) -> int:
    last = len(argv) - rest - 1
    return max(index for index in range(last + 1) if argv[index] == script)


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
    """Stands for an abbreviation of several of ddp-run's options; a mistake only if it is not the script's."""

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
        # Not required: a missing script is told together with everything else.
        self.add_argument("training_script").required = False
        self.add_argument("training_script_args", nargs=argparse.REMAINDER).required = False

    def error(self, message: str) -> NoReturn:
        raise self.explain(message)

    def explain(self, message: str, flags: tuple[str, ...] = ()) -> _Stopped:
        """What argparse's message is about; `flags` names the option where argparse does."""
        for word, candidates in self._ambiguous:
            if f": {word} could" in message:
                return _Stopped("ambiguous", candidates, word)
        return _Stopped("other", flags, None, message)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Candidates for an abbreviation: torch's options win, ours count where torch has none."""
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
        stand_in = _Ambiguous(flags, "ambiguous", nargs="?")
        return [(stand_in, option_string, *found[0][2:])]

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
        cluster = "" if text is not None else _rest_of_cluster(argv[cursor], cluster)
        if not cluster:
            cursor += 1 + separate
    return tuple(given), cursor


def _next_word(argv: Sequence[str], start: int, *flags: str) -> int:
    for index in range(start, len(argv)):
        if any(_means(argv[index], flag) for flag in flags):
            return index
    return min(start, len(argv) - 1)


def _means(word: str, flag: str) -> bool:
    if len(word) > 1 and word[0] == "-" and word[1] != "-":
        return word[:2] == flag[:2] or flag.startswith(word.split("=", 1)[0])
    return len(word) > 2 and flag.startswith(word.split("=", 1)[0])


def _stands_alone(word: str, flag: str, cluster: str) -> bool:
    """Whether the word is the option alone, so that its value is the next word."""
    if cluster:
        return len(cluster) == 1
    if word.startswith("--"):
        return "=" not in word
    return word == flag or not word.startswith(flag)


def _rest_of_cluster(word: str, cluster: str) -> str:
    """What is left of `-mr3` after its first letter."""
    if word.startswith("--"):
        return ""
    return cluster[1:] if cluster else word[2:]


# --------------------------------------------------------------------------------------------- telling


def _grammar_problem(stopped: _Stopped, argv: Sequence[str], cursor: int) -> Problem:
    word = _next_word(argv, cursor, *stopped.flags)
    if stopped.kind == "ambiguous":
        word = argv.index(stopped.word) if stopped.word in argv else word
        value = "".join(argv[word].partition("=")[1:])
        names = tuple(dict.fromkeys(flag.replace("_", "-") + value for flag in stopped.flags))
        # Before Python 3.14 two spellings of one option are as ambiguous to argparse as two options.
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


def _unknown_problems(argv: Sequence[str], unknown: Sequence[str], rows: Sequence[Row]) -> tuple[Problem, ...]:
    places: list[tuple[str, int]] = []
    start = 0
    for text in unknown:
        word = argv.index(text, start) if text in argv[start:] else start
        start = word + 1
        places.append((text, word))
    foreign = next(((text, word) for text, word in places if foreign_option(text)), None)
    if foreign is not None:
        return (_foreign_problem(*foreign, argv, rows),)
    names = {row.name.lstrip("-"): row.name for row in rows} | _SAID_OFTEN
    problems: list[Problem] = []
    for text, word in places:
        name = text.partition("=")[0]
        close = dict.fromkeys(names[each] for each in nearest(name.lstrip("-").replace("_", "-"), names))
        title = f"{UNKNOWN_OPTION} {name}"
        moved = move_behind_script(argv, [each for each, _ in places], rows)
        if close:
            notes = ("the script's own options go after it",) if moved else ()
            value = text.partition("=")[2] or "".join(argv[word + 1 : word + 2])
            number = f"={value}" if value.isdigit() else ""
            helps: tuple[str, ...] = (f"did you mean {' or '.join(each + number for each in close)}?",)
            problems.append(Problem("DDP101", title, word, _UNKNOWN, notes=notes, helps=helps))
            continue
        if moved is None or any(problem.label == _SCRIPTS for problem in problems):
            helps = ("ddp-run --help   # all options",) if moved is None else ()
            problems.append(Problem("DDP101", title, word, _UNKNOWN, helps=helps))
        else:
            notes = ("the script's own options go after it",)
            problems.append(Problem("DDP101", title, word, _SCRIPTS, notes=notes, helps=(moved,)))
    if len(problems) > 1 and problems[0].label == _SCRIPTS and all(not each.helps for each in problems[1:]):
        return tuple(problems[:1])
    return tuple(problems)


_SAID_OFTEN = dict.fromkeys(("nprocs", "num-procs", "procs-per-node"), "--nproc-per-node")
"""Names that no launcher has, and people type."""
UNKNOWN_OPTION = "unknown option"
_UNKNOWN = "not an option of ddp-run or of this torch's torchrun"
_SCRIPTS = "not an option of ddp-run or of this torch's torchrun; is it the script's?"


def _foreign_problem(text: str, word: int, argv: Sequence[str], rows: Sequence[Row]) -> Problem:
    found = translate_options(argv, rows)
    name = text.partition("=")[0]
    notes = found.notes
    if name.replace("_", "-") == "--use-env":
        notes = ("it is always on here, as under torchrun: ranks find LOCAL_RANK in their environment",)
    title = f"{name} is an option of {foreign_option(text)}"
    return Problem("DDP101", title, word, "not an option here", notes=notes, helps=(found.command,))
