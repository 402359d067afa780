"""A job's secret by MUNGE: a real munged with a key and a socket of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.process.agreeing import Run, loop, place, serve, serve_for
from tests.waiting import wait_until

from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes import agreement
from ddp_run.supervise.nodes import place as place_module
from ddp_run.supervise.nodes.link import Reach, dial
from ddp_run.supervise.nodes.place import Munge, Place

__all__ = ["loop", "place"]

NOBODY = 65534


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its socket, which ddp-run takes for the host's."""
    program = shutil.which("munged", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root and munged (apt-get install munge)")
    key, socket = tmp_path / "key", tmp_path / "socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)  # another user must reach the socket
    files = {"socket": socket, "key-file": key, "pid-file": tmp_path / "pid", "seed-file": tmp_path / "seed"}
    words = [f"--{name}={path}" for name, path in {**files, "log-file": tmp_path / "log"}.items()]
    said = tmp_path / "said"
    for _try in range(3):  # this fixture may have failed once under load: why is not known
        with said.open("ab") as stderr:
            started = subprocess.Popen([program, "--foreground", "--force", *words], stderr=stderr)
        try:
            with suppress(AssertionError):
                wait_until(socket.exists, "munged's socket", 20)
            if socket.exists() and started.poll() is None:
                monkeypatch.setattr(place_module, "_SOCKET", socket)
                yield socket
                return
        finally:
            started.terminate()
            started.wait()
    pytest.fail(f"munged gave no socket: {said.read_text(errors='replace')}")


def test_the_same_user_opens_what_node_0_shows(daemon: Path) -> None:
    first = Munge()
    secret = first.make()
    assert len(secret) == 32
    assert first.credential is not None
    assert secret.decode() not in first.credential
    for _ in range(2):  # a second process on one host: the daemon calls that a replay
        other = Munge()
        assert other.open(first.credential) == secret
        assert other.why is None


def test_a_credential_for_or_by_another_user_is_not_opened(daemon: Path) -> None:
    words = ["munge", f"--socket={daemon}", "--string=hush"]
    for_another = subprocess.check_output([*words, f"--restrict-uid={NOBODY}"], text=True).strip()
    by_another = subprocess.check_output(words, text=True, user=NOBODY).strip()
    for credential in (for_another, by_another, "MUNGE:AwQDAAA:", "", "MUNGE:\n\n"):
        other = Munge()
        assert other.open(credential) is None
        assert other.why == "node 0 protects messages by MUNGE, and this host can't open its credential"


def test_what_was_not_opened_is_not_tried_again_with_each_connection(
    daemon: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the daemon starts late. Another credential is tried at once."""
    first, second = Munge(), Munge()
    secrets = first.make(), second.make()
    other = Munge()
    monkeypatch.setattr(place_module, "_SOCKET", daemon.with_name("none"))
    assert other.open(first.credential) is None
    monkeypatch.setattr(place_module, "_SOCKET", daemon)
    assert other.open(first.credential) is None
    assert other.why is not None
    assert other.open(second.credential) == secrets[1]
    other._refused = other._refused[0], 0.0  # its time is over
    assert other.open(first.credential) == secrets[0]


def test_who_shows_none_is_not_node_0_where_munge_runs(daemon: Path) -> None:
    assert Munge().open(None) is None
    users_own = Munge(is_wanted=False)
    assert (users_own.open(None), users_own.open("MUNGE:x"), users_own.make()) == (b"", b"", b"")
    assert users_own.credential is None


def test_without_munge_there_is_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(place_module, "_SOCKET", tmp_path / "none")
    none = Munge()
    assert (none.make(), none.credential, none.open(None), none.why) == (b"", None, b"", None)
    assert none.open("MUNGE:x") is None


def test_nodes_of_one_user_meet_and_others_stay_outside(
    daemon: Path, loop: Loop, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "WAITING_S", 1.5)
    hub = Run(loop, replace(place, munge=Munge()))
    one = Run(loop, replace(place, node_rank=1, host="b", munge=Munge()))
    serve(loop, lambda: one.has_joined)
    heard: list[object] = []
    stranger = dial(loop, place.address, place.port, place.job_key, lambda link, message: heard.append(link.reach))
    assert stranger is not None
    serve(loop, lambda: Reach.HUNG_UP in heard or (not stranger.is_open and bool(heard)))
    monkeypatch.setattr(place_module, "_SOCKET", daemon.with_name("none"))
    two = Run(loop, replace(place, node_rank=2, host="c", munge=Munge()))
    serve(loop, lambda: bool(two.said))
    assert "can't open its credential; or set the same DDP_RUN_SECRET on all nodes" in two.said[0]
    serve_for(loop, 0.2)
    assert [*hub.hub._nodes] == [1]
    for run in (hub, one, two):
        run.close()
