"""Ranks that wait in the kernel: on a mount that is dead, for a lock, in native code; and how their job is ended.

The file system is a real one (FUSE), in a mount namespace of its own, whose server stops answering: its users are in
state D, and SIGKILL does not end them. Needs root and /dev/fuse. Most cases are run only when asked for:
`scripts/test -n 2 -m slow_system tests/system/test_kernel_waits.py`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.kernel_wait import KNOWS_CALLS
from ddp_run.observe.native_stack import TOOL, dump
from ddp_run.observe.process_look import ProcessLook, described, process
from ddp_run.observe.stack_text import native_frames
from ddp_run.observe.waited_paths import WaitedPaths, completed
from ddp_run.record.events import Rank
from ddp_run.values.helper_process import HelperProcesses
from ddp_run.values.process_table import environs, is_alive
from tests.waiting import limit, wait_until

from .conftest import Launcher, assert_replay_agrees
from .test_hangs import STALL, _line

SERVER = Path(__file__).parents[1] / "faults" / "dead_mount.py"
HAS_TOOL = shutil.which(TOOL, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is not None
needs_calls = pytest.mark.skipif(not KNOWS_CALLS, reason="system calls of this machine are not known")
needs_tool = pytest.mark.skipif(not HAS_TOOL, reason="py-spy is not installed (the extra `stacks`)")
slow = pytest.mark.slow_system


@dataclass
class DeadMount:
    """`within`: words to start a program with that is to see the mount at `folder`."""

    folder: Path
    server: subprocess.Popen[str]

    def wait_for_request(self) -> None:
        """Until it has taken a request that it will not answer; one that it has not taken ends with who made it."""
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "kept silent\n"

    @property
    def within(self) -> tuple[str, ...]:
        return ("nsenter", f"--mount=/proc/{self.server.pid}/ns/mnt")

    def release(self) -> None:
        """All that waits for it comes free, with an error."""
        self.server.kill()
        self.server.wait()


Mounted = Callable[..., DeadMount]


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[Mounted]:
    if os.getuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    mounts: list[DeadMount] = []

    def start(*silent: str) -> DeadMount:
        folder = tmp_path / "mnt"
        folder.mkdir()
        words = [sys.executable, str(SERVER), str(folder), *silent]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        mounts.append(DeadMount(folder, server))
        assert server.stdout is not None
        if server.stdout.readline() != "mounted\n":
            assert server.stderr is not None
            pytest.skip(f"no FUSE mount here: {server.stderr.read().strip().splitlines()[-1]}")
        return mounts[-1]

    yield start
    for mount in mounts:
        mount.release()


# ------------------------------------------------------------------------------------- what /proc says


@pytest.fixture
def run_python() -> Iterator[Callable[..., int]]:
    children: list[subprocess.Popen[bytes]] = []

    def start(program: str, *within: str) -> int:
        child = subprocess.Popen([*within, sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        return child.pid

    yield start
    for child in children:
        child.kill()
        child.wait(
            limit(60)
        )  # where it waits on a dead mount, that has to end first: `dead_mount` is the later argument


def _look(pid: int, wanted: Callable[[ProcessLook], bool]) -> ProcessLook:
    (found,) = wait_until(lambda: [look for look in [process(pid)] if wanted(look)], f"a look at {pid}")
    paths = WaitedPaths(HelperProcesses())
    paths.ask([found], {}, {})
    question = paths.question
    if question is None:
        return found
    wait_until(lambda: question.read()[1], "the path")
    paths.end()
    os.waitpid(question.pid, 0)
    return completed(found, paths.known)


@needs_calls
@pytest.mark.parametrize(
    ("silent", "program", "said"),
    [
        ("write", "os.write(os.open('{0}/ckpt.pt', os.O_CREAT | os.O_WRONLY), b'x')", "write to {0}/ckpt.pt"),
        ("read", "os.read(os.open('{0}/data.bin', 0), 9)", "read of {0}/data.bin"),
        ("fsync", "os.fsync(os.open('{0}/new', os.O_CREAT | os.O_WRONLY))", "fsync of {0}/new"),
        ("open", "os.open('{0}/data.bin', 0)", "open of {0}/data.bin"),
        ("lookup", "os.chdir('{0}'); os.stat('a/b')", "look-up of {0}/a/b"),
        ("lookup", "os.mkdir('x', dir_fd=os.open('{0}', 0))", "change of {0}/x"),
    ],
)
def test_what_is_waited_for_on_a_dead_mount(
    run_python: Callable[..., int], dead_mount: Mounted, silent: str, program: str, said: str
) -> None:
    mount = dead_mount(silent)
    pid = run_python(f"import os; print(flush=True); {program.format(mount.folder)}", *mount.within)
    mount.wait_for_request()
    look = _look(pid, lambda look: look.wait is not None and look.wait.call == said.split(" {")[0])
    assert look.waits_on() == f"{said.format(mount.folder)} (fuse at {mount.folder})"
    assert look.wait is not None
    assert look.wait.mount is not None
    os.kill(pid, signal.SIGKILL)
    killed = _look(pid, lambda look: look.state is ProcessState.DISK and look.waits_on() is not None)
    assert killed.waits_on() == look.waits_on()
    abort = look.wait.mount.release
    assert abort is not None
    if Path("/sys/fs/fuse/connections").is_dir() and any(Path("/sys/fs/fuse/connections").iterdir()):
        subprocess.run(["sh", "-c", abort], check=True)
    else:
        mount.release()
    wait_until(lambda: process(pid).state is ProcessState.GONE, "the end of the wait")


@needs_calls
def test_a_close_cannot_say_of_what(run_python: Callable[..., int], dead_mount: Mounted) -> None:
    mount = dead_mount("flush")
    program = f"import os; print(flush=True); os.close(os.open('{mount.folder}/data.bin', 0))"
    pid = run_python(program, *mount.within)
    mount.wait_for_request()
    assert _look(pid, lambda look: look.wait is not None).waits_on() == "close of a file"


@needs_calls
def test_memory_that_is_mapped_from_a_dead_mount(run_python: Callable[..., int], dead_mount: Mounted) -> None:
    mount = dead_mount("read")
    program = f"""
        import mmap, os
        memory = mmap.mmap(os.open('{mount.folder}/data.bin', os.O_RDONLY), 4096, prot=mmap.PROT_READ)
        print(flush=True)
        memory[0]
    """
    pid = run_python(program, *mount.within)
    mount.wait_for_request()
    wait_until(lambda: Path(f"/proc/{pid}/syscall").read_text().startswith("-1 "), "the access")
    os.kill(pid, signal.SIGKILL)
    look = _look(pid, lambda look: look.state is ProcessState.DISK and look.waits_on() is not None)
    assert (look.waits_on() or "").startswith("memory of a mapped file or swap (")


def test_a_process_that_waits_for_its_child_to_start(run_python: Callable[..., int]) -> None:
    pid = run_python(
        "import ctypes, time; print(flush=True)\nif ctypes.CDLL(None).vfork() == 0: time.sleep(1000)",
    )

    def waits_for_its_child(look: ProcessLook) -> bool:
        said = look.waits_on() or ""
        return look.state is ProcessState.DISK and bool(said) and (said.endswith("sleeps") or not KNOWS_CALLS)

    said = _look(pid, waits_for_its_child).waits_on()
    child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    os.kill(child, signal.SIGKILL)
    if KNOWS_CALLS:
        assert said == f"the start of a program (vfork): process {child}, sleeps"


@needs_calls
@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_who_holds_a_lock(tmp_path: Path, run_python: Callable[..., int], call: str) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        getattr(fcntl, call)(file, fcntl.LOCK_EX)
        pid = run_python(
            f"import fcntl; f = open('{path}', 'w'); print(flush=True); fcntl.{call}(f, fcntl.LOCK_EX)",
        )
        look = _look(pid, lambda look: look.wait is not None and look.wait.holder is not None)
    verb = "flock" if call == "flock" else "lock"
    assert look.waits_on() == f"{verb} of {path}, held by process {os.getpid()}"
    assert look.waits_on({os.getpid(): Rank(3)}) == f"{verb} of {path}, held by rank 3"


def test_a_process_in_the_kernel_is_described_by_its_name(run_python: Callable[..., int], dead_mount: Mounted) -> None:
    mount = dead_mount("read")
    pid = run_python(f"import os; print(flush=True); os.read(os.open('{mount.folder}/data.bin', 0), 9)", *mount.within)
    assert "os.read" in described(pid)
    mount.wait_for_request()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: process(pid).state is ProcessState.DISK, "state D")
    assert described(pid) == f"{pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"


KEEPS_ITS_LOCK = """
    import ctypes, mmap, os, threading, time
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    both = mmap.PROT_READ | mmap.PROT_WRITE
    page = libc.mmap(None, 4096, both, mmap.MAP_SHARED, os.open('{0}/data.bin', os.O_RDWR), 0)
    ctypes.memset(page, 1, 1)
    print(flush=True)
    instead = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED: the page is written first
    def keep():
        where = f"/proc/self/task/{{threading.main_thread().native_id}}/wchan"
        while open(where).read() != "hrtimer_nanosleep":  # later it might wait for the lock itself
            time.sleep(0.01)
        libc.mmap(page, 4096, both, instead, -1, 0)
    threading.Thread(target=keep).start()
    time.sleep(1000)
"""
KEPT = """
import os, sys
from ddp_run.supervise.children import BroughtAlong, Keeper
from ddp_run.values.helper_process import HelperProcesses
Keeper(sys.argv[1], [], HelperProcesses(), BroughtAlong()).start()
os.kill(os.getpid(), 9)
"""


def test_a_process_that_keeps_the_lock_of_its_memory_is_passed_over(
    tmp_path: Path, run_python: Callable[..., int], dead_mount: Mounted
) -> None:
    """Its environment and command line cannot be read, in state S too: one thread waits, with the lock, for a mount."""
    mount = dead_mount("write")
    pid = run_python(KEEPS_ITS_LOCK.format(mount.folder), *mount.within)
    mount.wait_for_request()
    assert process(pid).state is ProcessState.SLEEPING
    assert described(pid) == f"{pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    assert environs([pid, os.getpid()]).keys() == {os.getpid()}
    with subprocess.Popen(["sleep", "600"], env={"DDP_RUN_ID": tmp_path.name}) as carrier:
        try:
            assert (
                subprocess.run([sys.executable, "-c", KEPT, tmp_path.name], check=False).returncode == -signal.SIGKILL
            )
            assert carrier.wait(limit(60)) == -signal.SIGKILL, "ended by the keeper, which met the other process first"
        finally:
            carrier.kill()


# ------------------------------------------------------------------------------------------ whole jobs


def _start(kind: str, folder: Path, hang_timeout_s: int = 5) -> tuple[str, ...]:
    options = ("--nproc-per-node", "3", "--hang-timeout", str(hang_timeout_s))
    return (*options, str(STALL), "--kind", kind, "--folder", str(folder))


@pytest.mark.parametrize(
    ("kind", "silent", "said", "wait"),
    [
        # torch.save holds the interpreter's lock; FUSE waits in state S until a signal comes, and none does
        pytest.param("mount-save", "write", "is saving: {wait}", "write to {0}/ckpt.pt (fuse at {0})", marks=slow),
        pytest.param("mount-read", "read", "is blocked: {wait}", "read of {0}/data.bin (fuse at {0})", marks=slow),
        pytest.param("mount-open", "open", "is blocked: {wait}", "open of {0}/data.bin (fuse at {0})", marks=slow),
        pytest.param("mount-map", "read", "is blocked at stall.py", "memory of a mapped file or swap", marks=slow),
    ],
)
@needs_calls
def test_a_job_on_a_dead_mount_is_named_and_ended(
    ddp: Launcher, dead_mount: Mounted, kind: str, silent: str, said: str, wait: str
) -> None:
    mount = dead_mount(silent)
    wanted = wait.format(mount.folder)
    running = ddp.start(*_start(kind, mount.folder), within=mount.within)
    [stall, *_] = running.wait_for("StallSeen")
    assert stall["culprits"] == [1]
    assert f"rank 1 {said.format(wait=wanted)}" in stall["said"]
    assert any(f"stall.py:{_line(kind)} in" in quote for quote in stall["quotes"])
    outcome = running.wait()
    [left] = outcome.named("NotEnded")
    assert (left["rank"], left["state"]) == (1, "D")
    assert str(left["waits_on"]).startswith(wanted)
    verdict = outcome.verdict
    assert (outcome.code, verdict["outcome"], verdict["first_failure"]["rank"]) == (124, "hung", 1)
    assert (verdict["first_failure"]["pid"], verdict["phase"]) == (left["pid"], "training")
    assert f"= note: rank 1 (process {left['pid']}) cannot be killed" in outcome.stderr
    assert f"warning: rank 1 (process {left['pid']}) cannot be killed" in outcome.stderr
    assert_replay_agrees(outcome)
    assert process(left["pid"]).state is ProcessState.DISK, "nobody waited for it"
    mount.release()
    running.assert_nothing_left()


@slow
@needs_calls
def test_a_job_whose_rank_waits_for_a_lock_of_another_process(ddp: Launcher, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcome = ddp(*_start("file-lock", tmp_path))
    assert outcome.code == 124
    [stall, *_] = outcome.named("StallSeen")
    assert stall["culprits"] == [1]
    assert f"flock of {tmp_path}/lock, held by process {os.getpid()}" in stall["said"]


@slow
@needs_calls
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("full-pipe", "rank 1 is blocked: write to /"),
        ("vfork", "rank 1 waits in the kernel (state D): the start of a program (vfork): process "),
    ],
)
def test_other_waits(ddp: Launcher, tmp_path: Path, kind: str, said: str) -> None:
    outcome = ddp(*_start(kind, tmp_path))
    assert outcome.code == 124
    [stall, *_] = outcome.named("StallSeen")
    assert stall["culprits"] == [1]
    assert said in stall["said"]
    assert outcome.named("NotEnded") == []


# --------------------------------------------------------------------------------------- native frames

STUCK = """
    import ctypes
    def hold():
        print(flush=True)
        mutex = (ctypes.c_char * 64)()
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    hold()
"""


def _asked(pid: int) -> bytes:
    question = dump(pid)
    wait_until(lambda: question.read()[1], "py-spy")
    said, _ = question.read()
    question.end()
    os.waitpid(question.pid, 0)
    return said


@needs_tool
def test_native_frames(run_python: Callable[..., int]) -> None:
    pid = run_python(STUCK)
    wait_until(lambda: process(pid).on_lock, "the lock")
    frames = native_frames(_asked(pid).decode(), pid)
    assert any("pthread_mutex_lock (libc" in frame for frame in frames)
    assert "  hold (" in frames[-1]
    assert process(pid).state is ProcessState.SLEEPING


def test_without_the_tool_nothing_is_said(run_python: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_run.observe.native_stack.TOOL", "no-such-tool")
    assert _asked(run_python(STUCK)) == b""


@slow
@needs_tool
def test_native_frames_of_the_rank_at_fault(ddp: Launcher, tmp_path: Path) -> None:
    outcome = ddp(*_start("gil-lock", tmp_path, hang_timeout_s=45))
    assert outcome.code == 124
    [seen] = outcome.named("NativeFramesSeen")
    assert seen["rank"] == 1
    assert any("pthread_mutex_lock" in frame for frame in seen["frames"])
    assert outcome.named("StallSeen")[0]["at"] < seen["at"]
    assert any("pthread_mutex_lock" in quote["text"] for quote in outcome.verdict["evidence"])


# ---------------------------------------------------------------------------- ddp-run itself waits in the kernel


@dataclass
class FrozenFolder:
    """A file system of its own that can be made to let every write wait (fsfreeze(8)), in a mount namespace."""

    folder: Path
    holder: subprocess.Popen[str]

    @property
    def within(self) -> tuple[str, ...]:
        return ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt")

    def freeze(self, on: bool = True) -> None:
        subprocess.run([*self.within, "fsfreeze", "-f" if on else "-u", self.folder], check=True, timeout=limit(60))


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[FrozenFolder]:
    if os.getuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("fsfreeze") is None:
        pytest.skip("needs root, mkfs.ext4 and fsfreeze")
    folder, image = tmp_path / "frozen", tmp_path / "image"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=limit(60))
    mount = f"mount -o loop {image} {folder} && echo mounted && exec sleep 3600"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert holder.stdout is not None
    said = holder.stdout.readline()
    if said != "mounted\n":
        pytest.skip(f"no mount here: {said.strip()}")
    found = FrozenFolder(folder, holder)
    yield found
    subprocess.run([*found.within, "fsfreeze", "-u", folder], check=False, stderr=subprocess.DEVNULL)
    holder.kill()
    holder.wait()


@slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_ends_where_ddp_run_itself_waits_for_its_log_folder(
    ddp: Launcher, frozen: FrozenFolder, signum: signal.Signals
) -> None:
    """torchrun ends its ranks then too: it writes nothing there."""
    program = ddp.script(
        "import os, time; open('rank' + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(900)"
    )
    running = ddp.start("--log-dir", frozen.folder, "--nproc-per-node", 2, program, within=frozen.within)

    def ranks() -> list[int]:
        said = [path.read_text() for path in running.cwd.glob("rank*")]
        return [int(each) for each in said if each] if len(said) == 2 and all(said) else []

    pids = wait_until(ranks, "the ranks")
    frozen.freeze()
    wait_until(lambda: process(running.process.pid).state is ProcessState.DISK, "a write that waits")
    running.signal(signum)
    wait_until(lambda: not any(map(is_alive, pids)), "the end of the ranks", 90)
    frozen.freeze(on=False)
    assert running.process.wait(limit(60)) == (143 if signum == signal.SIGTERM else -9)
