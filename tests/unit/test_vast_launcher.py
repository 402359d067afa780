"""The launcher's parts that are functions over values; the whole is in tests/process/test_vast_launch.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vast_launcher.config import ConfigError, LaunchConfig, OfferFilter, read_config
from vast_launcher.offers import fitting, read_offers, search_words, why_none
from vast_launcher.onstart import MOST_CHARACTERS, on_start
from vast_launcher.remote_log import Finished, find_finished, new_lines

MINIMAL = 'image = "a"\ncommand = ["ddp-run", "a b.py"]\ninstall = ""\n'
CONFIG = LaunchConfig("a", "true", "", disk_gb=60, offer=OfferFilter("RTX 4090", max_price=2.0, min_cuda=12.4))
TOP = Path(__file__).resolve().parents[2]
HOOK = (TOP / "scripts" / "vast_onstart.sh").read_text()


def row(id: int, price: object = 1.0, **other: object) -> dict[str, object]:
    fields = {"num_gpus": 2, "gpu_name": "RTX 4090", "cuda_max_good": 12.4, "disk_space": 60, "inet_down": 1}
    return {"id": id, "dph_total": price, **fields, "reliability2": 0.99, "verification": "verified", **other}


def test_a_command_may_be_words() -> None:
    assert read_config("f", MINIMAL, {}).command == "ddp-run 'a b.py'"


def test_a_preset_of_ddp_run_is_told_from_what_is_to_be_rented() -> None:
    file = TOP / "configs" / "vast.toml"
    with pytest.raises(ConfigError, match="this is a preset of ddp-run; what to rent is another file") as caught:
        read_config("configs/vast.toml", file.read_text(), {})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("further", "nothing"),
    [("", True), ('setup = ["pip install ddp_run-0.1.0.whl"]\n', False), ('setup = ["cd repo"]\n', True)],
)
def test_who_installs_ddp_run(further: str, nothing: bool) -> None:
    assert read_config("f", MINIMAL + further, {}).installs_nothing is nothing
    assert not read_config("f", MINIMAL.replace('install = ""', 'install = "ddp-run"'), {}).installs_nothing


def test_our_example_is_valid() -> None:
    """Where nothing is set, too: documents show a dry run of it."""
    file = TOP / "scripts" / "examples" / "vast-launch.toml"
    config = read_config(str(file), file.read_text(), {})
    assert config.command.startswith("ddp-run ")


def test_the_search_has_all_conditions() -> None:
    assert search_words(CONFIG, 2)[2] == (
        "num_gpus=2 rentable=true gpu_name=RTX_4090 disk_space>=60 reliability>=0.98 cuda_vers>=12.4 dph<=2"
        " verified=true"
    )
    assert search_words(CONFIG, 2, relaxed=True)[2] == "num_gpus=2 rentable=true gpu_name=RTX_4090 verified=any"


def test_of_what_fits_the_cheapest_then_the_most_reliable() -> None:
    rows = [
        row(1, 1.5),
        row(2, 0.5, reliability2=0.985),
        row(3, 0.5),
        row(4, 0.1, gpu_name="RTX 3090"),
        row(5, 0.2, num_gpus=1),
    ]
    assert [offer.id for offer in fitting(read_offers(rows), CONFIG, 2)] == [3, 2, 1]


def test_rows_without_a_number_or_a_price_are_no_offers() -> None:
    assert read_offers([row(1, None), {"id": "x"}, "text", {}]) == []
    with pytest.raises(ValueError, match="list"):
        read_offers({"offers": []})


def test_what_is_not_told_of_an_offer_does_not_fit() -> None:
    unknown = {name: value for name, value in row(1).items() if name not in ("cuda_max_good", "reliability2")}
    assert fitting(read_offers([unknown]), CONFIG, 2) == []
    assert "1 with reliability below 0.98" in why_none(read_offers([unknown]), CONFIG, 2)[0]


def test_no_offer_of_that_kind() -> None:
    assert why_none([], CONFIG, 2) == [
        "there is no offer at all with 2 x RTX 4090: ask for another number or kind of GPUs"
    ]


def test_the_script_leaves_room_for_a_setup() -> None:
    """Vast.ai takes so many characters: the hook must not grow into what users need."""
    made = on_start(CONFIG, {}, HOOK, launch_id="0" * 8, on_end="stop", destroy_on_failure=False)
    assert len(made.packed()) < MOST_CHARACTERS - 1200


def test_the_last_line_is_that_of_the_launch() -> None:
    line = "vast-onstart: finished id={} exit={} uploaded=no next=stop folder=/w/ddp-run-logs/a b"
    lines = [line.format("me", 3), line.format("me", 7), line.format("other", 0), line.format("me", 999), "more"]
    assert find_finished(lines, "me") == Finished(7, "no", "stop", "/w/ddp-run-logs/a b")
    assert find_finished(lines, "nobody") is None


@given(st.lists(st.text("ab", max_size=2)), st.integers(1, 9), st.integers(0, 9))
def test_a_growing_log_is_shown_without_gaps_or_doubles(log: list[str], kept: int, grown: int) -> None:
    """Distinct lines: what was shown before and what is new make the log, as long as the ends overlap."""
    numbered = [f"{number} {text}" for number, text in enumerate(log)]
    at = max(0, len(numbered) - grown)
    before, now = numbered[:at][-kept:], numbered[-kept:]
    fresh, gap = new_lines(before, now)
    if gap:
        assert grown >= kept
        assert list(fresh) == now
    else:
        assert list(fresh) == (numbered[at:] if before else now)
