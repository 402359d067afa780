"""Reading what faulthandler writes: of this Python, and in the forms of 3.12 to 3.14 (Python/traceback.c)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ddp_run.observe.stack_text import Doing, Frame, Stack, dumps, is_whole, native_frames

LIB = "/usr/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
REAL = """
import faulthandler, sys, threading
def outer(depth):
    if depth: return outer(depth - 1)
    faulthandler.dump_traceback(file=sys.stdout.fileno(), all_threads=True)
def waits():
    asleep.set()
    threading.Event().wait()
asleep = threading.Event()
threading.Thread(target=waits, daemon=True).start()
asleep.wait()
print(threading.get_ident(), flush=True)
outer(2)
outer(1)
"""


def of(*frames: tuple[str, str]) -> Stack:
    return Stack(tuple(Frame(file, 1, function) for file, function in frames))


def test_what_this_python_writes(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(REAL)
    done = subprocess.run([sys.executable, "prog.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    ident, _, text = done.stdout.partition("\n")
    first, second = dumps(text, int(ident))
    assert [frame.function for frame in first.frames] == ["outer", "outer", "outer", "<module>"]
    assert [frame.function for frame in second.frames] == ["outer", "outer", "<module>"]
    assert first.users is not None
    assert first.users.place == "prog.py:5 in outer"
    assert [frame.function for frame in first.others[0]][-4:] == ["waits", "run", "_bootstrap_inner", "_bootstrap"]
    assert dumps(text, int(ident) - 2**64) == dumps(text, int(ident))  # the board's words are signed


def test_a_dump_without_the_main_thread_gives_nothing() -> None:
    text = 'Thread 0x0000000000000007 (most recent call first):\n  File "a.py", line 3 in f\n...\n'
    assert dumps(text, 9) == ()


@pytest.mark.parametrize(
    "text",
    [
        # 3.12, 3.13
        """\
        Thread 0x00007f0000000001 (most recent call first):
          File "/usr/lib/python3.12/threading.py", line 355 in wait
          Garbage-collecting

        Current thread 0x00007f0000000002 (most recent call first):
          Garbage-collecting
          File "/home/user/train.py", line ??? in step
          File "/home/user/train.py", line 9 in <module>

        Extension modules: numpy._core._multiarray_umath (total: 1)
        """,
        # 3.14: names, a truncated list, and the stack of C
        """\
        Thread 0x00007f0000000001 [Thread-1 (loop)] (most recent call first):
          <no Python frame>

        Current thread 0x00007f0000000002 [python3] (most recent call first):
          File "/home/user/train.py", line ??? in step
          File "/home/user/train.py", line 9 in <module>
          ...

        Current thread's C stack trace (most recent call first):
          Binary file "/usr/bin/python3", at _Py_DumpStack+0x31 [0x5f]
          <truncated rest of calls>
        """,
    ],
)
def test_other_releases(text: str) -> None:
    (stack,) = dumps(textwrap.dedent(text), 0x7F0000000002)
    assert stack.frames == (
        Frame("/home/user/train.py", None, "step"),
        Frame("/home/user/train.py", 9, "<module>"),
    )
    assert stack.users is not None
    assert stack.users.place == "train.py in step"


C10D = f"{TORCH}/distributed/distributed_c10d.py"
MINE = ("/home/user/train.py", "step")


@pytest.mark.parametrize(
    ("frames", "doing"),
    [
        ([(C10D, "all_reduce"), (f"{TORCH}/distributed/c10d_logger.py", "wrapper"), MINE], Doing.COLLECTIVE),
        ([(f"{TORCH}/distributed/utils.py", "_sync_module_states"), MINE], Doing.COLLECTIVE),
        ([(f"{TORCH}/distributed/_functional_collectives.py", "wait_tensor"), MINE], Doing.COLLECTIVE),
        ([(C10D, "_new_process_group_helper"), (C10D, "init_process_group"), MINE], Doing.MEETING),
        ([(C10D, "_new_process_group_helper"), (C10D, "new_group"), MINE], Doing.MEETING),
        ([(f"{TORCH}/autograd/graph.py", "_engine_run_backward"), MINE], Doing.BACKWARD),
        # A DataLoader waits for its workers by means of pipes and queues.
        (
            [
                (f"{LIB}/selectors.py", "select"),
                (f"{LIB}/multiprocessing/connection.py", "wait"),
                (f"{LIB}/multiprocessing/queues.py", "get"),
                (f"{TORCH}/utils/data/dataloader.py", "_try_get_data"),
                MINE,
            ],
            Doing.DATA,
        ),
        ([MINE, (f"{TORCH}/utils/data/_utils/fetch.py", "fetch"), MINE], Doing.DATA),
        # What a data set calls itself says more than that it is one.
        ([(f"{LIB}/socket.py", "readinto"), MINE, (f"{TORCH}/utils/data/_utils/fetch.py", "fetch")], Doing.FETCHING),
        ([(f"{LIB}/threading.py", "wait"), (f"{LIB}/queue.py", "get"), MINE], Doing.LOCK),
        ([(f"{LIB}/threading.py", "_shutdown")], Doing.ENDING),
        ([(f"{LIB}/subprocess.py", "wait"), MINE], Doing.PROCESS),
        ([(f"{TORCH}/serialization.py", "__init__"), (f"{TORCH}/serialization.py", "save"), MINE], Doing.SAVING),
        ([(f"{TORCH}/serialization.py", "_load"), MINE], Doing.LOADING),
        ([(f"{LIB}/pdb.py", "interaction"), MINE], Doing.DEBUGGER),
        ([MINE, (f"{TORCH}/_dynamo/convert_frame.py", "_compile"), MINE], Doing.COMPILING),
        # A saving that waits for the other ranks waits for them.
        ([(C10D, "gather_object"), (f"{TORCH}/distributed/checkpoint/state_dict_saver.py", "save")], Doing.COLLECTIVE),
        # Compiled code that runs is not being compiled.
        ([("/tmp/torchinductor_me/ab/cab.py", "call"), (f"{TORCH}/_dynamo/eval_frame.py", "_fn"), MINE], Doing.RUNNING),
        ([(f"{TORCH}/nn/modules/linear.py", "forward"), (f"{TORCH}/_dynamo/eval_frame.py", "_fn")], Doing.RUNNING),
        # The user's own functions are called as they like.
        ([("/home/user/save.py", "save"), MINE], Doing.RUNNING),
        ([("/home/user/pdb_loader.py", "barrier"), MINE], Doing.RUNNING),
        ([MINE, (C10D, "barrier")], Doing.RUNNING),
        ([], Doing.RUNNING),
    ],
)
def test_what_a_thread_does(frames: list[tuple[str, str]], doing: Doing) -> None:
    assert of(*frames).doing is doing


def test_the_collective_and_the_place() -> None:
    stack = of((C10D, "all_gather"), (C10D, "all_gather_object"), MINE)
    assert stack.operation == "all_gather_object"
    assert stack.users is not None
    assert stack.users.place == "train.py:1 in step"


def test_a_thread_that_fetches_helps() -> None:
    waits = Frame(f"{LIB}/threading.py", 1, "wait")
    fetches = (Frame(f"{LIB}/ssl.py", 1, "read"), Frame(f"{LIB}/http/client.py", 1, "readinto"))
    assert Stack((waits,), (fetches,)).helped
    assert not Stack((waits,), ((waits,),)).helped


def test_a_dump_that_is_still_being_written_is_not_whole() -> None:
    whole = (
        'Thread 0x0000000000000007 (most recent call first):\n  File "/x/ddp_run/rank/hooks.py", line 3 in _sample\n\n'
        'Current thread 0x0000000000000009 (most recent call first):\n  File "/home/user/train.py", line 3 in step\n'
        '  File "/x/ddp_run/rank/bootstrap.py", line 118 in main\n'
        '  File "/x/ddp_run/rank/__main__.py", line 12 in <module>\n'
    )
    assert is_whole(whole)
    assert not any(is_whole(whole[:end]) for end in range(len(whole)))
    assert not is_whole(whole + whole[:-1])
    assert is_whole(whole + whole)


def test_the_lock_file_that_the_main_thread_waits_for_belongs_to_the_dump_after_it() -> None:
    dump = 'Thread 0x0000000000000009 (most recent call first):\n  File "/home/user/train.py", line 3 in step\n'
    note = "# the main thread waits for a lock file: /cache/my ext/lock\n"
    seen = [stack.lock_file for stack in dumps(dump + note + dump + dump + note + dump, 9)]
    assert seen == [None, "/cache/my ext/lock", None, "/cache/my ext/lock"]


def _spied(*frames: tuple[str, str | None, int], thread: int = 7) -> str:
    listed = [
        {
            "name": name,
            "module": None if module is not None and module.endswith(".py") else module,
            "filename": module or "/home/user/train.py",
            "short_filename": (module or "train.py").rpartition("/")[2],
            "line": line,
        }
        for name, module, line in frames
    ]
    return json.dumps([{"os_thread_id": 6, "frames": []}, {"os_thread_id": thread, "frames": listed}])


def test_native_frames_reach_the_first_of_the_users() -> None:
    python = ("wait", f"{LIB}/threading.py", 327)
    frames = (("lock_wait", "/lib/libc.so.6", 0), ("call", "/lib/x.so", 9), python, ("step", None, 88), ("f", None, 99))
    seen = ("  lock_wait (libc.so.6)", "  call (x.so:9)", "  wait (threading.py:327)", "  step (train.py:88)")
    assert native_frames(_spied(*frames), 7) == seen
    assert native_frames("Sampling took long\n" + _spied(*frames), 7) == seen
    deep = native_frames(_spied(*[("f", "/lib/x.so", 1)] * 50, ("step", None, 88)), 7)
    assert (len(deep), deep[-2:]) == (12, ("  …", "  step (train.py:88)"))


@pytest.mark.parametrize("text", ["", "Error: Permission Denied: Try [sudo]", "[]", "[1]", '[{"os_thread_id": 8}]'])
def test_what_is_no_answer_of_py_spy(text: str) -> None:
    with pytest.raises(ValueError, match="no native frames"):
        native_frames(text, 7)
