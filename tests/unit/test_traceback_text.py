"""Tracebacks as a real interpreter prints them, behind the prefixes that logs put before them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import limit

from ddp_run.evidence import exception_chain, traceback_text
from ddp_run.evidence.model import LogText
from ddp_run.judge.quoted_line import line_of
from ddp_run.record.events import ExceptionInfo

PROGRAMS = {
    "plain": ("def f():\n    raise ValueError('bad')\nf()\n", "ValueError", "bad", 2),
    "no message": ("raise KeyError\n", "KeyError", "", 1),
    "lines": ("raise RuntimeError('one\\n\\ttwo')\n", "RuntimeError", "one\n\ttwo", 1),
    "handled before": (
        "import traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "raise OSError('last')\n",
        "OSError",
        "last",
        6,
    ),
    "context": ("try:\n    1/0\nexcept ZeroDivisionError:\n    {}['k']\n", "KeyError", "'k'", 4),
    "cause": ("try:\n    1/0\nexcept Exception as e:\n    raise OSError('x') from e\n", "OSError", "x", 4),
    "library": ("import json\ndef g():\n    json.loads('{')\ng()\n", "json.decoder.JSONDecodeError", None, 3),
    "recursion": ("def f(): f()\nf()\n", "RecursionError", None, 1),
    "syntax": ("x = (\n", "SyntaxError", "'(' was never closed", 1),
    "own class": ("class E(Exception): pass\nraise E('mine')\n", "__main__.E", "mine", 2),
    "group": (
        "raise ExceptionGroup('two', [ValueError(1), OSError(2)])\n",
        "ExceptionGroup",
        "two (2 sub-exceptions)",
        1,
    ),
    "note": ("e = ValueError('x')\ne.add_note('see y')\nraise e\n", "ValueError", "x\nsee y", 3),
}
PREFIXES = ("", "[rank0]: ", "0: ", "[default1]:", "2026-01-02 03:04:05,678 ERROR ", "[node-a:3] | ")


def printed(tmp_path: Path, program: str) -> list[str]:
    """What python writes to stderr for a program in train.py."""
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=limit(120)
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
def test_finds_what_the_interpreter_printed(name: str, tmp_path: Path) -> None:
    program, kind, message, line = PROGRAMS[name]
    lines = printed(tmp_path, program)
    for prefix in PREFIXES:
        log = ["step 1", *(prefix + text for text in lines), prefix + "W1121 08:00:00 api.py:869] Sending process"]
        found = traceback_text.last(log)
        assert found is not None, prefix
        assert found.info.type == kind.removeprefix("__main__.")
        assert message is None or found.info.message == message
        assert (Path(found.info.file or "").name, found.info.line) == ("train.py", line), prefix
        assert found.info.type in log[found.index]


def test_two_ranks_interleaved(tmp_path: Path) -> None:
    lines = printed(tmp_path, PROGRAMS["plain"][0])
    log = [f"[rank{rank}]: {line}".replace("bad", f"bad{rank}") for line in lines for rank in (0, 1)]
    assert traceback_text.find(log[::2])[0].info.message == "bad0"
    assert "bad0" in traceback_text.find(log)[0].info.message


def test_after_a_progress_bar_without_a_line_feed(tmp_path: Path) -> None:
    lines = printed(tmp_path, PROGRAMS["plain"][0])
    log = [" 50%|#####     | 1/2 [00:01<00:01]" + lines[0], *lines[1:]]
    found = traceback_text.last(log)
    assert found is not None
    assert (found.info.type, found.info.line) == ("ValueError", 2)


def test_what_ended_only_a_thread_does_not_hide_what_ended_the_program(tmp_path: Path) -> None:
    program = (
        "import threading, time\ndef f():\n    time.sleep(0.2)\n    raise OSError('thread')\n"
        "t = threading.Thread(target=f)\nt.start()\nraise ValueError('main')\n"
    )
    lines = printed(tmp_path, program)
    assert any("OSError: thread" in line for line in lines)
    found = traceback_text.last(lines)
    assert found is not None
    assert found.info.message == "main"


def test_a_dataloader_worker_names_the_users_line() -> None:
    text = """Traceback (most recent call last):
  File "/home/user/train.py", line 30, in <module>
    for batch in loader:
  File "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 733, in __next__
    data = self._next_data()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/user/data.py", line 12, in __getitem__
    raise ValueError("bad sample")
ValueError: bad sample
"""
    info = traceback_text.from_text(text)
    assert isinstance(info, ExceptionInfo)
    assert (info.type, info.file, info.line) == ("ValueError", "/home/user/data.py", 12)


def test_the_reason_for_a_sys_exit(tmp_path: Path) -> None:
    program = "import sys\ntry:\n    open('/nonexistent')\nexcept OSError as e:\n    raise RuntimeError('x') from e\n"
    info = exception_chain.before_last("\n".join(printed(tmp_path, program)))
    assert info is not None
    assert (info.type, info.line) == ("FileNotFoundError", 3)


ALONE = "try:\n    open('/nonexistent')\nexcept OSError as e:\n    raise {}\n"


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        pytest.param("ExceptionGroup('x', [e])", ("FileNotFoundError", 2), id="one"),
        pytest.param("ExceptionGroup('x', [ExceptionGroup('y', [e])])", ("FileNotFoundError", 2), id="one in another"),
        pytest.param("ExceptionGroup('x', [e, KeyError(1)])", ("ExceptionGroup", 4), id="two"),
        pytest.param(
            "ExceptionGroup('x', [ExceptionGroup('y', [e, KeyError(1)])])", ("ExceptionGroup", 4), id="two in another"
        ),
        pytest.param("ExceptionGroup('x', [KeyError(1)])", ("ExceptionGroup", 4), id="one without a place"),
        pytest.param("OSError('one (1 sub-exception)')", ("OSError", 4), id="no group"),
    ],
)
def test_the_only_one_of_a_group_stands_for_it(tmp_path: Path, raised: str, shown: tuple[str, int]) -> None:
    info = traceback_text.from_text("\n".join(printed(tmp_path, ALONE.format(raised))))
    assert info is not None
    found = exception_chain.at_its_origin(info)
    assert (found.type, found.line) == shown
    assert found.traceback == info.traceback


def test_the_line_that_could_not_be_compiled_is_shown_in_place_of_the_call() -> None:
    """torch/_dynamo/exc.py, `augment_exc_message`."""
    head = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 89, in main\n    encoder(batch)\n'
    said = "torch._dynamo.exc.Unsupported: Data-dependent branching\n  Explanation: none\n\nfrom user code:\n {}\n"
    library = (
        '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 5, in forward\n    return f(x)\n'
    )
    traced = '  File "/home/me/model.py", line 50, in forward\n    if x.sum() > 0:\n'
    for shown, line in ((traced, 50), (traced + library, 50), (library, 89)):
        info = traceback_text.from_text(head + said.format(shown))
        assert info is not None
        assert exception_chain.at_its_origin(info).line == line


def test_a_library_that_exits_for_the_program_is_shown_by_the_line_that_called_it() -> None:
    """argparse handles its own error, below `parse_args`, and calls `sys.exit`."""
    library = '  File "/usr/lib/python3.11/argparse.py", line {}, in {}\n    pass\n'
    inner = f"Traceback (most recent call last):\n{library.format(1871, 'parse_known_args')}"
    inner += f"{library.format(2542, '_get_value')}argparse.ArgumentError: argument --n: invalid int value: 'x'\n"
    outer = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 72, in main\n    parse()\n'
    outer += f"{library.format(1862, 'parse_args')}{library.format(1871, 'parse_known_args')}SystemExit: 2\n"
    text = f"{inner}\nDuring handling of the above exception, another exception occurred:\n\n{outer}"
    whole, led_to_it = traceback_text.from_text(text), exception_chain.before_last(text)
    assert whole is not None and led_to_it is not None
    found = exception_chain.origin_of(led_to_it, whole)
    assert (found.type, found.line) == ("argparse.ArgumentError", 72)


def test_healthy_text_has_none() -> None:
    assert traceback_text.find(["Traceback (most recent call last):", "step 1", "", "File a", "loss: 3"]) == ()


@pytest.mark.parametrize(
    ("kind", "message", "traceback", "line"),
    [
        pytest.param("OSError", "no room", "Traceback", 2, id="type and message"),
        pytest.param("OSError", "elsewhere", "Traceback", 2, id="the type"),
        pytest.param("PermissionError", "not allowed", "", 3, id="the program's own words"),
        pytest.param("PermissionError", "not allowed", "Traceback", None, id="words of another exception"),
        pytest.param("PermissionError", "", "", None, id="no words at all"),
    ],
)
def test_the_line_that_shows_it(kind: str, message: str, traceback: str, line: int | None) -> None:
    log = LogText("log", ("step 1", "OSError: no room", "cannot go on: not allowed", "the end"))
    shown = line_of(log, ExceptionInfo(kind, message, None, None, None, traceback))
    assert [quote.line for quote in shown] == ([] if line is None else [line])


def test_a_progress_bar_before_a_prefix_that_each_line_has() -> None:
    bar = "\r 20%|##        | 2/10 [00:02<00:01, 9.87it/s]"
    text = [
        f"{bar}[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/home/me/fit.py", line 54, in main',
        "[rank1]:     step()",
        "[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer",
    ]
    printed = traceback_text.last(text)
    assert printed is not None
    assert (printed.info.type, printed.info.line) == ("ConnectionResetError", 54)


@pytest.mark.parametrize(
    ("said", "after", "message"),
    [
        pytest.param(
            "PermissionError: [Errno 13] Permission denied: '/scratch/run'",
            "viewer: Address already in use",
            "[Errno 13] Permission denied: '/scratch/run'",
            id="the system's own is one line",
        ),
        pytest.param("OSError: [Errno 28] No space left on device", "tail: done", "[Errno 28] No space left on device"),
        pytest.param("IndexError: no row 4", "make[2]: *** [Makefile:7: fit] Error 1", "no row 4", id="make's line"),
        pytest.param("IndexError: no row 4", "srun: error: n1: task 0: Exited with exit code 1", "no row 4"),
        pytest.param("IndexError: no row 4", "of the table", "no row 4\nof the table", id="a message goes on"),
        pytest.param("OSError: No model at 'hub'.", "Give a path", "No model at 'hub'.\nGive a path", id="a library's"),
        pytest.param(
            "OSError: [Errno 2] No such file or directory: '/a/",
            "b.bin'",
            "[Errno 2] No such file or directory: '/a/\nb.bin'",
        ),
    ],
)
def test_where_a_message_ends(said: str, after: str, message: str) -> None:
    text = ["Traceback (most recent call last):", '  File "fit.py", line 3, in <module>', "    go()", said, after]
    printed = traceback_text.last(text)
    assert printed is not None
    assert printed.info.message == message


def test_ranks_that_printed_one_exception_at_once() -> None:
    frame = '  File "/home/me/eval.py", line 9, in <module>'
    said = "ImportErrorImportErrorImportError: : : no kernels hereno kernels hereno kernels here"
    printed = traceback_text.last(["Traceback (most recent call last):", frame, frame, "    import kernels", said])
    assert printed is not None
    assert (printed.info.type, printed.info.message) == ("ImportError", "no kernels here")
