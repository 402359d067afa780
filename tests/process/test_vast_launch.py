"""scripts/vast_launch.py as a process, with a stand-in for the vendor's client that runs what is sent to it.

No account at Vast.ai is needed, and none was used: what is real here is the launcher, the on-start script, and the
training's process; what stands in is `vastai` and the rented machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.planted_secrets import BY_FORM
from tests.waiting import limit, wait_until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vast_launch.py"
STAND_IN = Path(__file__).resolve().parent / "vast_stand_in"
SECRET = BY_FORM["Hugging Face"]


def offer(id: int, price: float, **other: object) -> dict[str, object]:
    """A row as `vastai search offers --raw` gives it; of its fields those that are read."""
    fields = {"num_gpus": 2, "gpu_name": "RTX 4090", "reliability": 0.995, "cuda_max_good": 12.8, "disk_space": 500.0}
    place = {"inet_down": 800.0, "geolocation": "Sweden, SE", "verification": "verified", "rentable": True}
    return {"id": id, "dph_total": price, **fields, **place, **other}


OFFERS = (offer(11, 0.9), offer(12, 0.5), offer(13, 0.4, reliability=0.9, found=False), offer(14, 2.5, found=False))


@dataclass
class Done:
    """How the launcher ended."""

    code: int
    out: str
    err: str


class Vast:
    """A Vast.ai of one instance, and the launcher that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "workspace"
        self.work.mkdir()
        self.environ = {
            **{name: value for name, value in os.environ.items() if name != "VAST_API_KEY"},
            "PATH": f"{STAND_IN}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "VAST_STAND_IN": str(folder),
        }
        self.knobs()

    def knobs(self, **knobs: object) -> None:
        (self.folder / "knobs.json").write_text(json.dumps({"offers": OFFERS} | knobs))

    def config(self, command: str = "echo training", *, text: str = "", offer: str = "max_price = 2.0") -> str:
        file = self.folder / "launch.toml"
        file.write_text(
            f'image = "pytorch/pytorch"\ncommand = {json.dumps(command)}\ninstall = ""\n'
            f'work_dir = "{self.work}"\n{text}\n[offer]\ngpu_name = "RTX_4090"\n{offer}\n'
        )
        return str(file)

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        poll = () if "--dry-run" in words else ("--poll", "0.05")
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *words, *poll],
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **environ: str) -> Done:
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=limit(60))
        return Done(process.returncode, out, err)

    def launch(self, *words: str, **environ: str) -> Done:
        return self.run("launch", "--config", str(self.folder / "launch.toml"), "--num-gpus", "2", *words, **environ)

    @property
    def calls(self) -> list[dict[str, Any]]:
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def called(self, *first: str) -> list[list[str]]:
        return [call["words"] for call in self.calls if call["words"][: len(first)] == list(first)]

    @property
    def instance(self) -> Mapping[str, Any] | None:
        file = self.folder / "instance.json"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def fate(self) -> str:
        if self.instance is None:
            return "destroyed"
        return "stopped" if self.instance["intended_status"] == "stopped" else "kept"


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Vast]:
    made = Vast(tmp_path)
    yield made
    pid = (made.instance or {}).get("pid")
    if pid is not None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


# ------------------------------------------------------------------------------------------- nothing is sent


def test_a_dry_run_shows_all_that_would_be_sent_and_sends_nothing(vast: Vast) -> None:
    vast.config("ddp-run train.py", text=f'pass_env = ["HF_TOKEN", "MODE"]\nupload = "curl -H apikey={SECRET} x"')
    done = vast.launch("--dry-run", "--auto-shutdown", HF_TOKEN=SECRET, MODE="quiet mode", PATH=os.environ["PATH"])
    assert (done.code, vast.calls) == (0, [])
    assert done.err.endswith(": install is empty: the image must have ddp-run, or the run ends with 127\n")
    search = "num_gpus=2 rentable=true gpu_name=RTX_4090 disk_space>=40 reliability>=0.98 dph<=2 verified=true"
    assert f"vastai search offers '{search}' --order dph --storage 40 --limit 100 --raw" in done.out
    assert re.search(r"vastai create instance OFFER --image pytorch/pytorch --disk 40 --label ddp-run-\w{8} ", done.out)
    assert "export TRAIN_CMD='ddp-run train.py'" in done.out
    assert "export HF_TOKEN='(hidden: 37 characters)'" in done.out
    assert "export ON_END=stop" in done.out
    assert SECRET not in done.out
    assert "quiet mode" not in done.out


def test_what_a_dry_run_shows_is_what_is_sent(vast: Vast) -> None:
    vast.config("true", text='setup = ["echo it\'s", "true"]\npass_env = ["HF_TOKEN"]')
    shown = vast.launch("--dry-run", HF_TOKEN=SECRET).out
    vast.launch(HF_TOKEN=SECRET)
    (search,), (create,) = vast.called("search"), vast.called("create")
    assert f"vastai search offers '{search[2]}' {' '.join(search[3:])}" in shown
    assert SECRET not in " ".join(create)
    unpacked = (vast.folder / ".vast_onstart.sh").read_text()
    without_ids = re.compile(r"ID=\w+")
    for line in re.findall(r"^    (export (?!HF_TOKEN).*)", shown, re.MULTILINE):
        assert without_ids.sub("ID", line) in without_ids.sub("ID", unpacked)
    assert (vast.folder / ".vast_onstart.sh").stat().st_mode & 0o077 == 0


def test_all_mistakes_of_a_configuration_at_once(vast: Vast) -> None:
    (vast.folder / "launch.toml").write_text(
        'image = ""\ncomand = "x"\ndisk_gb = "big"\non_end = "burn"\npass_env = ["NOT_SET_HERE"]\n'
        "[offer]\nverified = 1\n"
    )
    done = vast.launch()
    file = vast.folder / "launch.toml"
    assert done.code == 2
    assert done.err.splitlines() == [
        f"vast_launch: {file}:1: image = '': expected a text that is not empty",
        f"vast_launch: {file}:2: unknown key comand: did you mean command?",
        f"vast_launch: {file}:3: disk_gb = 'big': expected a number above 0",
        f"vast_launch: {file}:4: on_end = 'burn': expected keep, stop or destroy",
        f"vast_launch: {file}:7: verified = 1: expected true or false",
        f'vast_launch: {file}: command is missing: what to run, e.g. command = "ddp-run --max-retries 2 '
        '--nproc-per-node gpu train.py"',
        f'vast_launch: {file}: install is missing: what pip installs to get ddp-run, e.g. install = "git+https://…"; '
        '"" if the image has it',
        f"vast_launch: {file}:5: pass_env: NOT_SET_HERE is not set in your environment",
    ]
    assert vast.calls == []


def test_setup_that_is_too_long_is_refused_before_anything_is_rented(vast: Vast) -> None:
    vast.config(text=f'setup = ["echo {os.urandom(3000).hex()}"]')
    done = vast.launch()
    assert done.code == 2
    assert "more than the 4048 that Vast.ai takes" in done.err
    assert vast.calls == []


def test_without_the_vendors_client(vast: Vast) -> None:
    vast.config()
    done = vast.launch(PATH="/usr/bin:/bin")
    assert done.code == 127
    assert "pip install vastai" in done.err


# ---------------------------------------------------------------------------------------------- the offer


def test_the_cheapest_that_fits_is_rented(vast: Vast) -> None:
    vast.config()
    done = vast.launch()
    assert done.code == 0
    (create,) = vast.called("create")
    assert create[2] == "12"
    assert "offers that fit: 2; the cheapest is offer 12: 2 x RTX 4090, $0.500/h, Sweden, SE" in done.err


@pytest.mark.slow_system
def test_offers_that_do_not_fit_are_not_believed(vast: Vast) -> None:
    """A limit on the price is a promise, whatever a search answers."""
    vast.knobs(offers=[offer(21, 3.0), offer(22, 1.0, num_gpus=1), offer(23, 1.5)])
    vast.config()
    assert vast.launch().code == 0
    assert vast.called("create")[0][2] == "23"


def test_no_offer_says_why(vast: Vast) -> None:
    vast.knobs(offers=[offer(13, 0.4, reliability=0.9, found=False), offer(14, 2.5, found=False)])
    vast.config()
    done = vast.launch()
    assert done.code == 69
    assert "no offer fits\n" in done.err
    assert "2 offers with 2 x RTX_4090: 1 with reliability below 0.98, 1 above $2/h\n" in done.err
    assert "the cheapest of them: offer 13: 2 x RTX 4090, $0.400/h" in done.err
    assert vast.called("create") == []


def test_an_offer_that_is_gone_leads_to_the_next(vast: Vast) -> None:
    gone = "error 404/3603: no_such_ask Instance type by id 12 is not available."
    vast.knobs(refused={"12": gone})
    vast.config()
    done = vast.launch()
    assert done.code == 0
    assert [words[2] for words in vast.called("create")] == ["12", "11"]
    assert f"offer 12 was not rented: vastai create instance: {gone} (404)" in done.err


@pytest.mark.slow_system
def test_nothing_rented(vast: Vast) -> None:
    vast.knobs(refused={"11": "no credit", "12": "no credit"})
    vast.config()
    done = vast.launch()
    assert done.code == 69
    assert done.err.endswith("vast_launch: nothing was rented\n")


def test_a_rental_without_an_answer_is_found_by_its_label(vast: Vast) -> None:
    vast.knobs(no_answer=True)
    vast.config("exit 6")
    done = vast.launch()
    assert len(vast.called("create")) == 1
    assert done.code == 6


# ---------------------------------------------------------------------------------------------- the result


@pytest.mark.parametrize("code", [7, *(pytest.param(code, marks=pytest.mark.slow_system) for code in (0, 255))])
def test_the_trainings_own_exit_code_comes_home(vast: Vast, code: int) -> None:
    vast.config(f"sh -c 'echo step 1; echo step 2 >&2; exit {code}'")
    done = vast.launch()
    assert done.code == code
    assert {"step 1", "step 2"} <= {*done.out.splitlines()}
    assert f"the training ended with exit code {code} " in done.err
    assert vast.fate == "kept"
    assert "instance 4242 goes on and costs $0.500/h" in done.err
    assert "vastai destroy instance 4242" in done.err


def test_a_training_that_prints_the_last_line_decides_nothing(vast: Vast) -> None:
    line = "vast-onstart: finished id=0000 exit=0 uploaded=yes next=destroy folder=/x"
    vast.config(f"sh -c 'echo {line}; exit 9'")
    assert vast.launch("--auto-shutdown").code == 9
    assert vast.fate == "stopped"


@pytest.mark.slow_system
def test_names_of_variables_bring_their_values(vast: Vast) -> None:
    vast.config('sh -c \'test "$HF_TOKEN" = "$(cat token)"\'', text='pass_env = ["HF_TOKEN"]')
    (vast.work / "token").write_text('it\'s "two" $words')
    assert vast.launch(HF_TOKEN='it\'s "two" $words').code == 0


def test_a_setup_that_fails_is_the_result(vast: Vast) -> None:
    vast.config("echo training", text='setup = ["echo one", "(exit 5)", "echo two"]')
    done = vast.launch()
    assert done.code == 5
    assert "one" in done.out.splitlines()
    assert not {"two", "training"} & {*done.out.splitlines()}


@pytest.mark.slow_system
def test_a_real_job_with_its_run_folder_saved(vast: Vast) -> None:
    (vast.work / "train.py").write_text("import sys\nprint('rank here')\nsys.exit(3)")
    vast.config("ddp-run --nproc-per-node 2 train.py", text='upload = "cp -r $RUN_FOLDER saved"\non_end = "destroy"')
    done = vast.launch()
    assert done.code == 3
    assert "ddp-run: verdict outcome=failed cause=python-exception" in done.out
    assert json.loads((vast.work / "saved" / "verdict.json").read_text())["exit_code"] == 3
    assert vast.fate == "destroyed"


# -------------------------------------------------------------------------------- what becomes of the instance

slow = pytest.mark.slow_system
SAVED, UNSAVED = 'upload = "cp -r $RUN_FOLDER saved"', 'upload = "false"'
DESTROY = ("--on-end", "destroy")


@pytest.mark.parametrize(
    ("code", "words", "upload", "fate"),
    [
        (0, ("--auto-shutdown",), "", "stopped"),
        pytest.param(7, ("--auto-shutdown",), "", "stopped", marks=slow),
        pytest.param(0, DESTROY, "", "destroyed", marks=slow),
        pytest.param(0, DESTROY, UNSAVED, "stopped", marks=slow),
        (7, DESTROY, "", "stopped"),
        pytest.param(7, DESTROY, UNSAVED, "stopped", marks=slow),
        (7, DESTROY, SAVED, "destroyed"),
        pytest.param(7, (*DESTROY, "--destroy-on-failure"), "", "destroyed", marks=slow),
    ],
)
def test_only_what_was_asked_for_and_never_with_unsaved_logs(
    vast: Vast, code: int, words: tuple[str, ...], upload: str, fate: str
) -> None:
    run = f"sh -c 'mkdir -p ddp-run-logs/1; ln -s 1 ddp-run-logs/latest; exit {code}'"
    vast.config(run, text=upload)
    assert vast.launch(*words).code == code
    assert vast.fate == fate


def test_the_instance_ends_itself_when_nobody_follows(vast: Vast) -> None:
    go = vast.folder / "go"
    vast.config(f"sh -c 'until [ -e {go} ]; do sleep 0.05; done; exit 7'")
    process = vast.start("launch", "--config", str(vast.folder / "launch.toml"), "--num-gpus", "2", "--on-end", "stop")
    wait_until(lambda: vast.called("logs"), "the log being followed")
    process.kill()
    process.communicate()
    go.touch()
    wait_until(lambda: vast.fate == "stopped", "the end of the instance")
    assert [call["inside"] for call in vast.calls if call["words"][0] == "stop"] == [True]
    assert (vast.work / ".ddp-run-vast" / "exit_code").read_text() == "7\n"


@pytest.mark.parametrize(("words", "fate"), [pytest.param((), "kept", marks=slow), (("--auto-shutdown",), "destroyed")])
def test_an_instance_that_never_runs(vast: Vast, words: tuple[str, ...], fate: str) -> None:
    """Nothing has run in it, so that nothing is lost with it."""
    vast.knobs(status="loading", status_msg="pulling\nthe image")
    vast.config(text="start_within_s = 0.3")
    done = vast.launch(*words)
    assert done.code == 75
    assert "did not start: it does not run after 0.3 s: loading (pulling the image)" in done.err
    assert vast.fate == fate
    assert ("goes on and costs" in done.err) == (fate == "kept")


@pytest.mark.parametrize("status", ["offline", pytest.param("exited", marks=slow)])
def test_an_instance_that_may_have_run_is_not_destroyed(vast: Vast, status: str) -> None:
    """Logs may be on its disk, although nobody has seen it run."""
    vast.knobs(status=status)
    vast.config(text="start_within_s = 0.3")
    done = vast.launch("--on-end", "destroy")
    assert done.code == 75
    assert vast.fate == "kept"
    assert "vastai destroy instance 4242" in done.err


def test_an_instance_that_is_gone_leaves_no_result(vast: Vast) -> None:
    vast.config("sleep 600")
    process = vast.start("launch", "--config", str(vast.folder / "launch.toml"), "--num-gpus", "2")
    wait_until(lambda: vast.called("logs"), "the log being followed")
    subprocess.run(["vastai", "destroy", "instance", "4242", "--yes"], env=vast.environ, check=True)
    _out, err = process.communicate(timeout=limit(60))
    assert process.returncode == 75
    assert err.endswith("the result of instance 4242 is not known: it does not exist any more\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow)])
def test_told_to_stop_it_says_what_is_left_and_can_follow_again(vast: Vast, signum: signal.Signals) -> None:
    go = vast.folder / "go"
    vast.config(f"sh -c 'until [ -e {go} ]; do sleep 0.05; done; echo late; exit 7'")
    process = vast.start("launch", "--config", str(vast.folder / "launch.toml"), "--num-gpus", "2")
    wait_until(lambda: vast.called("logs"), "the log being followed")
    process.send_signal(signum)
    _out, err = process.communicate(timeout=limit(60))
    assert process.returncode == 128 + signum
    assert "told to stop; instance 4242 goes on and costs $0.500/h (so far about $0.00)" in err
    assert f"{SCRIPT} follow 4242" in err
    go.touch()
    done = vast.run("follow", "4242")
    assert done.code == 7
    assert "late" in done.out.splitlines()


def test_a_rental_that_is_being_made_is_known_before_a_stop_counts(vast: Vast) -> None:
    vast.knobs(create_waits=True)
    vast.config("sleep 600")
    process = vast.start("launch", "--config", str(vast.folder / "launch.toml"), "--num-gpus", "2")
    wait_until(lambda: vast.called("create"), "the rental")
    process.send_signal(signal.SIGINT)
    (vast.folder / "go").touch()
    _out, err = process.communicate(timeout=limit(60))
    assert process.returncode == 130
    assert "told to stop; instance 4242 goes on" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--auto-shutdown", "--on-end", "keep"), "--auto-shutdown and --on-end keep contradict each other"),
        (("--destroy-on-failure",), "--destroy-on-failure has no effect with on_end = keep: add --on-end destroy"),
    ],
)
def test_words_that_cannot_be_meant(vast: Vast, words: tuple[str, ...], said: str) -> None:
    vast.config()
    done = vast.launch("--dry-run", *words)
    assert (done.code, done.out, done.err) == (2, "", f"vast_launch: {said}\n")


@pytest.mark.slow_system
def test_follow_asks_for_an_instance_of_its_own(vast: Vast) -> None:
    assert vast.run("follow", "1").code == 75
    (vast.folder / "instance.json").write_text(json.dumps({"id": 4242, "label": "mine", "dph_total": 1}))
    done = vast.run("follow", "4242")
    assert done.code == 2
    assert "its label is 'mine'" in done.err
    (vast.folder / "instance.json").unlink()


@pytest.mark.parametrize("also", [False, True], ids=["stdout", "stderr too"])
def test_nobody_reads_any_more(vast: Vast, also: bool) -> None:
    """As behind `| head`: the run is followed to its end all the same, and the instance is ended."""
    vast.config('sh -c "echo one; sleep 1; echo two; exit 7"')
    config = str(vast.folder / "launch.toml")
    process = vast.start("launch", "--config", config, "--num-gpus", "2", "--auto-shutdown")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = "" if also else process.stderr.read()
    process.stderr.close()
    assert process.wait(limit(60)) == 7
    assert vast.fate == "stopped"
    assert also or "the log is no longer shown: Broken pipe" in said
