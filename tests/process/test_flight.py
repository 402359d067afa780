"""What `rank/flight.py` keeps: of real recorders (gloo), and of NCCL's entries, which need a GPU, in their form.

The form is that of torch's FlightRecorder (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp).
"""

from __future__ import annotations

import json
import pickle
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.loaded_process import LoadedProcess
from tests.unchanged import slow_if_unchanged

from ddp_run.observe.collectives import last_collectives
from ddp_run.rank import flight

REAL = """
    import json, sys, time
    import torch
    import torch.distributed as dist
    from ddp_run.rank import flight

    dist.init_process_group("gloo", init_method="file://{folder}/meet", rank=0, world_size=1)
    def step():
        dist.all_reduce(torch.ones(3))
    step()
    c10d = sys.modules["torch._C._distributed_c10d"]
    if not hasattr(c10d, "_dump_fr_trace_json"):
        sys.exit(77)
    pending = {{"record_id": 0, "profiling_name": "nccl:all_reduce", "state": "scheduled"}}
    frames = flight._with_frames({{"entries": [pending]}}, c10d._dump_fr_trace)["entries"][0]["frames"]
    assert any(frame["name"] == "step" for frame in frames), frames
    assert "torch._inductor" not in sys.modules and "_inductor" not in vars(torch)
    while True:  # until gloo's thread has marked it as done
        recorded = flight._unpickled(c10d._dump_fr_trace(True, True, False))
        if all(entry["retired"] for entry in recorded["entries"]):
            break
        time.sleep(0.01)
    flight.dump({folder!r})
    print(json.dumps(recorded))
"""


@slow_if_unchanged(__file__)
def test_real_entries_and_the_users_line_of_them(torch_process: LoadedProcess, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(REAL.format(folder=str(tmp_path))))
    done = torch_process.run(tmp_path / "train.py", cwd=tmp_path)
    if done.returncode == 77:
        pytest.skip("this torch records nothing of gloo")
    assert done.returncode == 0, done.stderr
    last, current = last_collectives(json.loads((tmp_path / "flight.json").read_text()))
    assert {group: (each.number, each.said) for group, each in last.items()} == {"gloo:0": (1, "all_reduce of [3]")}
    assert current is None
    entries = json.loads(done.stdout)["entries"]  # the other form, which has frames
    last, _ = last_collectives({"recorders": [{"entries": entries}]})
    assert last["gloo:0"].place == "train.py:9 in step"


def test_other_threads_import_the_compiler_meanwhile(torch_process: LoadedProcess) -> None:
    program = """
        import sys, threading, torch
        from ddp_run.rank import flight

        seen = []
        def compiles():
            seen.append(torch._inductor.config.debug)
        with flight._InductorStandIn():
            assert not hasattr(torch._inductor, "codecache")
            thread = threading.Thread(target=compiles)
            thread.start()
            thread.join()
        assert seen == [False], seen
        assert torch._inductor is sys.modules["torch._inductor"]
    """
    done = torch_process.run(textwrap.dedent(program))
    assert done.returncode == 0, done.stderr


def entry(record: int, number: int, state: str, group: str = "0", **more: object) -> dict[str, object]:
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": [group, "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": record,
        "input_sizes": [[20]],
        "input_dtypes": ["Float"],
        "output_sizes": [[20]],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        "thread_name": "python",
        **more,
    }


Entries = list[dict[str, object]]


def recorder(nccl: Entries, others: Entries | None = None, *, json_too: bool = True) -> SimpleNamespace:
    """torch's bindings with these entries."""
    asked: list[str] = []

    def recorded(entries: Entries) -> dict[str, object]:
        status = {"0": {"last_enqueued_collective": "9", "last_completed_collective": "2"}}
        return {"version": "2.10", "pg_config": {}, "pg_status": status, "entries": entries}

    def pickled(*, includeCollectives: bool, includeStackTraces: bool, onlyActive: bool) -> bytes:
        assert includeCollectives
        asked.append("frames" if includeStackTraces else "all")
        frames = [{"name": "step", "filename": "/home/user/train.py", "line": 88}] * 90
        kept = [each for each in nccl if not onlyActive or each["state"] != "completed"]
        return pickle.dumps(recorded([each | {"frames": frames} if includeStackTraces else each for each in kept]))

    def as_json(entries: Entries) -> Any:
        return lambda includeCollectives, onlyActive: json.dumps(recorded(entries)).encode()

    bindings = SimpleNamespace(_dump_nccl_trace=pickled, asked=asked)
    if json_too:
        bindings._dump_nccl_trace_json = as_json(nccl)
    if others is not None:
        bindings._dump_fr_trace_json = as_json(others)
    return bindings


def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bindings: object) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", bindings)
    flight.dump(str(tmp_path))
    return dict(json.loads((tmp_path / "flight.json").read_text()))


def done(count: int) -> Entries:
    return [entry(number, number, "completed") for number in range(1, count + 1)]


@pytest.mark.parametrize("json_too", [True, False])  # torch 2.4 has none for NCCL
def test_the_first_that_nccl_has_not_done_is_kept_however_far_the_rank_ran_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_too: bool
) -> None:
    ahead = [entry(number, number, "scheduled") for number in range(101, 500)]
    recorded = dumped(tmp_path, monkeypatch, recorder(done(100) + ahead, json_too=json_too))
    last, current = last_collectives(recorded)
    assert last["nccl:0"].number == 499
    assert current is not None
    assert (current.number, current.place) == (101, "train.py:88 in step")
    kept = recorded["recorders"][0]["entries"]
    assert len(kept) == flight.MOST_ENTRIES + flight.MOST_OPEN
    assert max(len(each.get("frames", ())) for each in kept) == flight.MOST_FRAMES


def test_stacks_are_not_asked_for_where_nothing_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = recorder(done(3))
    assert last_collectives(dumped(tmp_path, monkeypatch, bindings))[1] is None
    assert bindings.asked == []


def test_stacks_with_cpp_in_them_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = recorder([*done(2), entry(3, 3, "started")])
    monkeypatch.setenv("TORCH_NCCL_TRACE_CPP_STACK", "1")
    _, current = last_collectives(dumped(tmp_path, monkeypatch, bindings))
    assert current is not None
    assert (current.number, current.place, bindings.asked) == (3, None, [])


def test_old_parts_of_coalesced_collectives_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [entry(number, number, "scheduled") for number in range(1, 50)]
    after = [entry(number, number, "completed") for number in range(50, 150)]
    kept = dumped(tmp_path, monkeypatch, recorder(parts + after))["recorders"][0]["entries"]
    assert [each["collective_seq_id"] for each in kept] == list(range(86, 150))


def test_both_recorders_are_kept_and_nccls_entries_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = entry(1, 7, "scheduled", profiling_name="gloo:barrier", retired=True)
    recorded = dumped(tmp_path, monkeypatch, recorder(done(3), [*done(3), gloo]))
    assert [len(each["entries"]) for each in recorded["recorders"]] == [3, 1]
    assert set(last_collectives(recorded)[0]) == {"nccl:0", "gloo:0"}


def test_each_backend_has_its_recorder_since_torch_2_15(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There `nccl` is another implementation, and NCCL's own bindings know nothing of it."""
    hooked = recorder([*done(2), entry(3, 3, "scheduled")])
    bindings = recorder([])

    def as_json(includeCollectives: bool, onlyActive: bool, backend: str = "gloo") -> bytes:
        gloo = [entry(1, 7, "scheduled", profiling_name="gloo:barrier", retired=True)]
        entries = {"gloo": gloo, "nccl": json.loads(hooked._dump_nccl_trace_json(True, False))["entries"]}
        return json.dumps({"entries": entries.get(backend, [])}).encode()

    def pickled(backend: str, **asked: bool) -> bytes:
        assert backend == "nccl"
        return bytes(hooked._dump_nccl_trace(**asked))

    bindings._dump_fr_trace_json, bindings._dump_fr_trace = as_json, pickled
    last, current = last_collectives(dumped(tmp_path, monkeypatch, bindings))
    assert {group: each.number for group, each in last.items()} == {"nccl:0": 3, "gloo:0": 7}
    assert current is not None
    assert (current.number, current.place) == (3, "train.py:88 in step")


def test_one_recorder_that_fails_leaves_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> bytes:
        raise RuntimeError("CUDA error: unspecified launch failure")

    bindings = recorder([], [entry(1, 7, "scheduled", profiling_name="gloo:barrier")])
    bindings._dump_nccl_trace_json = broken
    with pytest.raises(RuntimeError, match="launch failure"):
        dumped(tmp_path, monkeypatch, bindings)
    assert "gloo:0" in last_collectives(json.loads((tmp_path / "flight.json").read_text()))[0]


def test_a_torch_without_recorders_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError):
        dumped(tmp_path, monkeypatch, SimpleNamespace())
    assert list(tmp_path.iterdir()) == []
