"""Where values come from, what is refused, what reaches the agent."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.unchanged import slow_if_unchanged

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.settings.grammar import HelpWanted
from ddp_run.settings.help_text import short_help, whole_help
from ddp_run.settings.options import Options, Source
from ddp_run.settings.parse import parse
from ddp_run.settings.table import (
    OWN_ROWS,
    Row,
    TableUnreadable,
    all_rows,
    rows_of_actions,
)
from ddp_run.settings.table import read_torch_table as read_table
from ddp_run.values.problem import CODES, Problem, Refused, render


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return torch_rows()


Parse = Callable[..., Options]


@pytest.fixture
def parsed(rows: tuple[Row, ...]) -> Parse:
    def parse_line(line: str, config: str | None = None, **variables: str) -> Options:
        def read(path: str) -> str:
            if config is None or path != "p.toml":
                raise FileNotFoundError(2, "No such file or directory", path)
            return config

        return parse(shlex.split(line), variables, torch_rows=rows, read_file=read)

    return parse_line


def _problems(parsed: Parse, line: str, config: str | None = None, **variables: str) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as caught:
        parsed(line, config, **variables)
    assert caught.value.argv == tuple(shlex.split(line))
    return caught.value.problems


def _only(parsed: Parse, line: str, config: str | None = None, **variables: str) -> Problem:
    problems = _problems(parsed, line, config, **variables)
    assert len(problems) == 1, problems
    return problems[0]


def _origin(options: Options, dest: str) -> tuple[Source, str]:
    return options.settings[dest].source, options.settings[dest].origin


# ---------------------------------------------------------------------------------------------- origins


def test_the_first_that_has_a_value_wins(parsed: Parse) -> None:
    config = "# preset\nnproc-per-node = 5\n"
    line = "--config p.toml x.py"
    sources: Mapping[str, str] = {"PET_NPROC_PER_NODE": "3", "NPROC_PER_NODE": "4"}
    plain = {"NPROC_PER_NODE": "4"}
    given = parsed(f"--nproc-per-node=2 {line}", config, **sources)
    assert (given.nproc, *_origin(given, "nproc_per_node")) == ("2", Source.OPTION, "--nproc-per-node")
    pet = parsed(line, config, **sources)
    assert (pet.nproc, *_origin(pet, "nproc_per_node")) == ("3", Source.PET, "PET_NPROC_PER_NODE")
    variable = parsed(line, config, **plain)
    assert (variable.nproc, *_origin(variable, "nproc_per_node")) == ("4", Source.VARIABLE, "NPROC_PER_NODE")
    preset = parsed(line, config)
    assert (preset.nproc, *_origin(preset, "nproc_per_node")) == ("5", Source.CONFIG, "p.toml:2")
    default = parsed("x.py")
    assert (default.nproc, *_origin(default, "nproc_per_node")) == ("1", Source.DEFAULT, "default")


def test_own_options_have_their_variables(parsed: Parse) -> None:
    values = {"MAX_RETRIES": "2", "DDP_RUN_RETRY": "always", "DDP_RUN_NCCL_DEBUG": "trace", "DDP_RUN_CONSOLE": "none"}
    options = parsed("x.py", **values, DDP_RUN_LOG_FORMAT="json", DDP_RUN_PREFLIGHT="off")
    assert (options.max_retries, options.retry, options.nccl_debug) == (2, "always", "trace")
    assert (options.console, options.log_format, options.preflight) == ("none", "json", "off")
    assert options.torch_arguments() == ()


def test_the_agent_gets_what_it_cannot_read_itself(parsed: Parse) -> None:
    options = parsed(
        "--config p.toml --standalone -r3 --max_retries 1 -m mod -r 1",
        'rdzv-conf = "timeout=5"\n',
        NPROC_PER_NODE="2",
        PET_ROLE="trainer",
        PET_NO_PYTHON="0",
    )
    assert (options.script, options.script_args) == ("mod", ("-r", "1"))
    assert options.argv[options.script_word :] == ("mod", "-r", "1")
    expected = {"--standalone", "--redirects=3", "--module", "--rdzv-conf=timeout=5", "--nproc-per-node=2"}
    assert set(options.torch_arguments()) == expected
    assert options.role == "trainer"
    assert options.redirects == 3


def test_typed_values(parsed: Parse) -> None:
    options = parsed("--nnodes 1:2 --node-rank 1 --tee 0:1,3:3 --local-ranks-filter 0,2 --shutdown-timeout 3 x.py")
    assert (options.min_nodes, options.max_nodes, options.node_rank, options.grace_s) == (1, 2, 1, 3.0)
    assert options.tee == {0: 1, 3: 3}
    assert options.local_ranks_filter == frozenset({0, 2})
    assert options.master == ("127.0.0.1", 29500)
    assert parsed("x.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7").grace_s == 7.0
    assert parsed("x.py").grace_s == 30.0
    assert parsed("x.py").master is None


# ------------------------------------------------------------------------------- variables of other jobs


@pytest.mark.parametrize(
    "line",
    [
        "--standalone x.py",
        "--rdzv-backend c10d --rdzv-endpoint localhost:0 x.py",
        "--rdzv-backend c10d x.py",
        "--rdzv-endpoint 127.0.0.1:29511 x.py",
    ],
)
def test_exported_variables_leave_a_chosen_rendezvous_alone(parsed: Parse, line: str) -> None:
    exported = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29500", "NNODES": "4", "NODE_RANK": "3"}
    assert parsed(line, **exported).torch_arguments() == parsed(line).torch_arguments()
    broken = {"MASTER_PORT": "tcp://10.0.0.1:80", "NNODES": "many", "NODE_RANK": "x"}
    assert parsed(line, **broken).torch_arguments() == parsed(line).torch_arguments()


def test_rank_and_world_size_are_never_read(parsed: Parse) -> None:
    assert parsed("x.py", RANK="3", WORLD_SIZE="8", LOCAL_RANK="1").torch_arguments() == ()


def test_a_broken_port_matters_to_several_nodes_only(parsed: Parse) -> None:
    alone = parsed("x.py", MASTER_PORT="tcp://10.0.0.1:80")
    assert alone.master is None
    assert "MASTER_PORT" in alone.notes[0]
    assert "MASTER_ADDR" in parsed("x.py", MASTER_ADDR="http://node-a").notes[0]
    problem = _only(parsed, "--nnodes 2 x.py", MASTER_PORT="tcp://10.0.0.1:80")
    assert problem.origin == "environment variable MASTER_PORT"
    assert "Kubernetes" in problem.notes[0]


def test_a_node_rank_of_other_jobs_does_not_matter_to_one_node(parsed: Parse) -> None:
    assert parsed("--master-port 29511 x.py", NODE_RANK="3").node_rank == 0


@pytest.mark.parametrize("variables", [{}, {"MASTER_PORT": "29511", "NODE_RANK": "1"}], ids=["alone", "port"])
def test_a_number_of_nodes_without_a_master_is_not_this_jobs(parsed: Parse, variables: dict[str, str]) -> None:
    options = parsed("x.py", NNODES="2", **variables)
    assert (options.max_nodes, options.node_rank) == (1, 0)
    assert options.notes == ("ignoring NNODES=2: no master address was given (--master-addr)",)
    assert parsed("--master-addr=127.0.0.1 x.py", NNODES="2", **variables).max_nodes == 2
    assert parsed("x.py", NNODES="-2", **variables).max_nodes == 1
    assert _only(parsed, "--master-addr=127.0.0.1 x.py", NNODES="-2").origin == "environment variable NNODES"
    assert parsed("x.py", NNODES="1").notes == parsed("x.py", NNODES="1:1").notes == ()
    assert parsed("x.py", NNODES="1", MASTER_ADDR="a").notes == ()


@pytest.mark.parametrize("line", ["x.py", "--standalone x.py", "--nnodes=1 x.py", "--rdzv-endpoint=a:1 x.py"])
def test_a_number_of_ranks_counts_whatever_becomes_of_the_other_variables(parsed: Parse, line: str) -> None:
    assert parsed(line, NNODES="2", NPROC_PER_NODE="4", NODE_RANK="1").nproc == "4"
    assert parsed(line, NODE_RANK="1", NPROC_PER_NODE="4", MASTER_PORT="29511").nproc == "4"


def test_variables_lead_to_several_nodes(parsed: Parse) -> None:
    options = parsed("x.py", NNODES="2", NODE_RANK="1", MASTER_ADDR="node-a", MASTER_PORT="29511")
    assert options.master == ("node-a", 29511)
    assert options.notes == ("2 nodes, from the variable NNODES",)
    assert parsed("--rdzv-backend=static x.py", NNODES="2", MASTER_ADDR="node-a").max_nodes == 2
    assert set(options.torch_arguments()) == {
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=node-a",
        "--master-port=29511",
    }


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--nnodes=two x.py", 0),
        ("--master-addr=node-a --nnodes=two x.py", 1),
        ("--nnodes=0 x.py", 0),
        ("--nnodes 3:2 x.py", 1),
        ("--nnodes=1:2:3 x.py", 0),
        ("--nproc-per-node 0 x.py", 1),
        ("--nproc-per-node=-1 x.py", 0),
        ("--nproc_per_node two x.py", 1),
        ("--standalone --max-restarts=-1 x.py", 1),
        ("--max-retries=-1 x.py", 0),
        ("--max-retries 1.5 x.py", 1),
        ("--master-port 65536 x.py", 1),
        ("--master-port=-1 x.py", 0),
        ("--redirects 4 x.py", 1),
        ("-r5 x.py", 0),
        ("--tee 0:1;1:1 x.py".replace(";", "_"), 1),
        ("--local-ranks-filter a,b x.py", 1),
        ("--rdzv-conf timeout x.py", 1),
        ("--start-method thread x.py", 1),
        ("--retry sometimes x.py", 1),
        ("--console=loud x.py", 0),
        ("--nnodes 2 --node-rank 2 x.py", 3),
        ("--rdzv-endpoint somewhere x.py", 1),
        ("--rdzv-backend c10d --rdzv-endpoint host:99999 x.py", 3),
        ("--standalone --nnodes 2 x.py", 2),
        ("-m --no-python x", 0),
        ("--max-retries 1 --nnodes 1:2 x.py", 1),
        ("--shutdown-timeout=-1 x.py", 0),
        ("--monitor-interval=nan x.py", 0),
        ("--standalone=yes x.py", 0),
        ("--frobnicate x.py", 0),
        ("--nproc-per-node=2", 1),
        ("--role r --nnodes", 2),
        ("--role r -mt", 2),
        ("--unknown -mt", 1),
        ("-m -m=1 x", 1),
        ("--role r -mx y", 2),
        ("--role=--max --max 2 x.py", 1),
        ("--nnodes=1 --con=none x.py", 1),
    ],
)
def test_each_mistake_is_one_problem_at_its_word(parsed: Parse, line: str, word: int) -> None:
    problem = _only(parsed, line)
    assert problem.word == word
    assert problem.code in CODES
    text = render([problem], shlex.split(line))
    assert text.startswith(f"error[{problem.code}]: {problem.title}\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--nnodes=0 x.py", "must be at least 1"),
        ("--max-retries=many x.py", "'many' is not an integer"),
        ("--retry=sometimes x.py", "by-cause, always, never"),
        ("--start-method=thread x.py", "spawn"),
        ("--log-size-cap=7M x.py", "must be at least 8M"),
        ("--log-size-cap=many x.py", "'many' is not a size"),
    ],
)
def test_a_refusal_says_what_is_allowed(parsed: Parse, line: str, says: str) -> None:
    assert says in _only(parsed, line).title
    (variable,) = _problems(parsed, "--master-addr=a x.py", NNODES="0")
    assert variable.title == "NNODES: must be at least 1"


@pytest.mark.parametrize(
    ("text", "size"), [("8M", 8 << 20), ("2g", 2 << 30), ("1T", 1 << 40), ("9000KiB", 9000 << 10), ("8388608", 8 << 20)]
)
def test_a_size(parsed: Parse, text: str, size: int) -> None:
    assert parsed(f"--log-size-cap={text} x.py").log_cap_bytes == size


def test_a_missing_script_is_told_with_an_example_and_where_it_belongs(parsed: Parse) -> None:
    problem = _only(parsed, "--nproc-per-node=2")
    assert "script" in problem.label
    assert "ddp-run --nproc-per-node=2 train.py" in problem.helps


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--log-dir train.py", 1),
        ("--standalone --nproc-per-node train.py", 2),
        ("--nproc-per-node train.py --lr 1", 1),
        ("--max-retries run.sh x", 1),
        ("--console train.py data.csv", 1),
    ],
)
def test_an_option_that_took_the_script_is_named(parsed: Parse, line: str, word: int) -> None:
    """As where an empty variable was to be its value: what the other words then mean is of no use."""
    problem = _only(parsed, line)
    words = shlex.split(line)
    assert (problem.code, problem.word) == ("DDP101", word)
    assert f"{words[word - 1]} took the script {words[word]}" in problem.title
    assert "empty" in problem.notes[0]
    assert f'{words[word - 1]}="$NAME"' in problem.helps[0]


@pytest.mark.parametrize(
    "line",
    [
        "--log-dir train.py x.py",
        "--log-dir=train.py x.py",
        "-m --role a.sh pkg.train",
        "--nnodes 2 --master-addr gpu.sh x.py",
        "--on-end run.sh --standalone x.py",
    ],
)
def test_a_value_may_look_like_a_script(parsed: Parse, line: str) -> None:
    assert parsed(line).script in ("x.py", "pkg.train")


def test_a_value_in_the_option_s_own_word_is_no_script(parsed: Parse) -> None:
    assert "script is missing" in _only(parsed, "--log-dir=train.py").title
    assert "train.py" in _only(parsed, "--nproc-per-node=train.py x.py").title


def test_a_malformed_grace_is_named(parsed: Parse) -> None:
    for text in ("soon", "-1", "1.5"):
        problem = _only(parsed, "x.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT=text)
        assert (problem.code, problem.origin) == ("DDP101", "environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        assert text in problem.title
    assert parsed("--shutdown-timeout=3 x.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="soon").grace_s == 3.0


@slow_if_unchanged(__file__)
def test_no_words_end_in_anything_but_a_refusal(rows: tuple[Row, ...]) -> None:
    odd = (
        " |\r|\u201cx\u201d|\u2013nnodes=2|~/x|$X|a.b|-|--|-m|--lr|--lr=1|-1|1e-3|srun|mpirun|accelerate|launch|python"
    )
    odd += "|torchrun|-np|-x|-mca|-n|t.py|x.sh|http://h:1|10.0.0.1:|[::1]:1|::1|--=|=|--multi_gpu=1|--num_processes=|two|\udcff"
    words = [*odd.split("|"), "", *(flag for row in rows for flag in row.flags)]
    variables = ("NNODES", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "NODE_RANK", "MAX_RETRIES", "DDP_DEBUG")
    choose = random.Random(7)
    told = 0
    for _ in range(1500):
        argv = [choose.choice(words) for _ in range(choose.randint(0, 7))]
        environ = {choose.choice(variables): choose.choice(words)} if choose.random() < 0.3 else {}
        try:
            parse(argv, environ, torch_rows=rows)
        except Refused as refused:
            told += bool(render(refused.problems, argv))
        except HelpWanted:
            pass
    assert told > 500


def test_what_torchrun_ignores_is_not_checked(parsed: Parse) -> None:
    assert parsed("--standalone --master-port 99999 --rdzv-endpoint a:b x.py").standalone
    assert parsed("--nnodes=2 --rdzv-endpoint=a:1 --master-addr=http://b x.py").is_static
    assert parsed("--master-addr=http://b x.py").master is None
    assert parsed("--run-path -m --no-python /x.py").run_path
    assert parsed("x.py", PET_START_METHOD="nonsense").script == "x.py"


def test_a_variable_that_the_option_overrides_is_not_read_but_for_a_switch(parsed: Parse) -> None:
    """As under torchrun: it reads an option's variable as the default, and a switch's always."""
    assert parsed("--max-restarts=1 x.py", PET_MAX_RESTARTS="x").restarts == 1
    assert parsed("--standalone x.py", PET_STANDALONE="0").standalone
    problem = _only(parsed, "--standalone x.py", PET_STANDALONE="yes")
    assert problem.origin == "environment variable PET_STANDALONE"


def test_mistakes_in_variables_are_told_beside_others(parsed: Parse) -> None:
    variables = {"NNODES": "x", "MASTER_ADDR": "a"}
    assert len(_problems(parsed, "x.py", PET_STANDALONE="maybe", **variables)) == 2
    assert len(_problems(parsed, "--nnodes=two x.py", MASTER_PORT="tcp://10.0.0.1:80")) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("PET_STANDALONE", "yes"), ("PET_MAX_RESTARTS", "x"), ("PET_NNODES", "two"), ("DDP_RUN_RETRY", "x")],
)
def test_a_malformed_variable_is_named(parsed: Parse, name: str, value: str) -> None:
    problem = _only(parsed, "x.py", **{name: value})
    assert problem.origin == f"environment variable {name}"
    assert name in problem.title


@pytest.mark.parametrize(
    ("line", "retries"),
    [("--nnodes 2 --rdzv-backend c10d", "3"), ("--nnodes 1:4", "1"), ("", "x"), ("", "-1"), ("", "1.5")],
)
def test_retries_of_somebody_elses_are_not_taken(parsed: Parse, line: str, retries: str) -> None:
    """Many programs read MAX_RETRIES: what does not fit was meant for one of them."""
    options = parsed(f"{line} --master-addr a x.py", MAX_RETRIES=retries)
    assert (options.max_retries, options.settings["max_retries"].source) == (0, Source.DEFAULT)
    (note,) = options.notes
    assert re.match(r"ignoring MAX_RETRIES(=\S+)?: (retries need|'.+' is not an integer|must be at least 0)", note)
    assert parsed("--nnodes 2 --master-addr a --retry never x.py", MAX_RETRIES="3").max_retries == 3


@pytest.mark.parametrize("value", ["0", "false", "False", "no", "off", ""])
def test_a_variable_that_says_no_switches_nothing_on(parsed: Parse, value: str) -> None:
    assert not parsed("x.py", DDP_DEBUG=value).ddp_debug
    assert parsed("--ddp-debug x.py", DDP_DEBUG=value).ddp_debug
    assert parsed("x.py", "ddp-debug = true\n", DDP_DEBUG="1", DDP_RUN_CONFIG="p.toml").ddp_debug


@pytest.mark.parametrize("value", ["1", "true", "yes", "INFO"])
def test_a_variable_that_says_yes_switches_on(parsed: Parse, value: str) -> None:
    assert parsed("x.py", DDP_DEBUG=value).ddp_debug


def test_all_problems_are_told_at_once(parsed: Parse) -> None:
    config = "retries = 3\nnccl-debug = 'loud'\nnproc-per-node = 0\nmax-restarts = true\n"
    problems = _problems(parsed, "--config p.toml --nnodes=x --unknown=1 x.py", config, PET_STANDALONE="maybe")
    origins = [problem.origin or problem.word for problem in problems]
    assert sorted(map(str, origins)) == sorted(
        ["p.toml:1", "p.toml:2", "p.toml:3", "p.toml:4", "2", "3", "environment variable PET_STANDALONE"]
    )


def test_the_nearest_names_are_offered(parsed: Parse) -> None:
    assert _only(parsed, "--nproc-per-nod3=2 x.py").helps == ("did you mean --nproc-per-node=2?",)
    assert "did you mean --max-retries=2 or --max-restarts=2?" in _only(parsed, "--max-retriess=2 x.py").helps
    assert _only(parsed, "--nccl-debug wran x.py").helps == ("--nccl-debug=warn",)


def test_retries_of_nodes_that_cannot_agree_say_why(parsed: Parse) -> None:
    elastic = "--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint a:1 --max-retries 1"
    assert "agree on a retry" in _only(parsed, f"{elastic} x.py").notes[0]
    assert parsed(f"{elastic} --retry never x.py").max_retries == 1
    assert parsed("--nnodes 2 --max-retries 1 x.py").max_retries == 1
    assert parsed("--nnodes 2 --master-addr a x.py", MAX_RETRIES="3").max_retries == 3


# ------------------------------------------------------------------------------------------------ preset


def test_a_preset_is_read_in_both_spellings(parsed: Parse) -> None:
    config = 'nproc_per_node = "gpu"\nmonitor-interval = 1\nstandalone = true\nmax_retries = 3\n"role" = "r"\n'
    options = parsed("--config p.toml x.py", config)
    assert (options.nproc, options.standalone, options.max_retries, options.role) == ("gpu", True, 3, "r")
    assert "--monitor-interval=1" in options.torch_arguments()


@pytest.mark.parametrize(
    ("config", "place", "says"),
    [
        ("nnodes = 1\n\nnnode-rank = 3\n", "p.toml:3", "unknown key nnode-rank"),
        ("config = 'other.toml'\n", "p.toml:1", "unknown key config"),
        ("[launch]\nnnodes = 1\n", "p.toml:1", "unknown key launch"),
        ("max-retries = 'two'\n", "p.toml:1", "expected an integer"),
        ("standalone = 1\n", "p.toml:1", "expected true or false"),
        ("max-restarts = true\n", "p.toml:1", "expected an integer"),
        ("role = ['a']\n", "p.toml:1", "expected a string"),
        ("a = 1\nnnodes = = 2\n", "p.toml:2", "not valid TOML"),
        ("max-retries = 1\nmax_retries = 2\n", "p.toml:2", "set twice"),
    ],
)
def test_a_mistake_in_a_preset_has_its_line(parsed: Parse, config: str, place: str, says: str) -> None:
    problem = _only(parsed, "--config p.toml x.py", config)
    assert problem.origin == place
    assert says in problem.title


def test_an_unreadable_preset(parsed: Parse) -> None:
    by_option = _only(parsed, "--config p.toml x.py")
    assert (by_option.code, by_option.word, by_option.origin) == ("DDP101", 1, None)
    assert by_option.title == "cannot read p.toml: No such file or directory"
    by_variable = _only(parsed, "x.py", DDP_RUN_CONFIG="p.toml")
    assert (by_variable.word, by_variable.origin) == (None, "environment variable DDP_RUN_CONFIG")


def test_a_preset_of_bytes_is_not_read(rows: tuple[Row, ...]) -> None:
    with pytest.raises(Refused) as caught:
        parse(["--config=p.toml", "x.py"], {}, torch_rows=rows, read_file=lambda _path: b"\xff".decode())
    assert "not UTF-8" in caught.value.problems[0].title


# ------------------------------------------------------------------------------------------------- table

_OLDER = """
def get_args_parser():
    parser = ArgumentParser(description="x")
    parser.add_argument("--nnodes", action=env, type=str, default="1:1", help="a" "b")
    parser.add_argument("-m", "--module", action=check_env, help="m")
    parser.add_argument("--bind", choices=[mode.value for mode in Modes], type=str, default=None)
    parser.add_argument("training_script", type=str)
    parser.add_argument("training_script_args", nargs=REMAINDER)
    return parser

def main(): pass
"""


def test_an_older_torch_gets_our_shutdown_timeout() -> None:
    table = read_table(_OLDER)
    assert [row.dest for row in table] == ["nnodes", "module", "bind"]
    assert table[2].choices is None
    options = parse(["--shutdown-timeout", "4", "x.py"], {}, torch_rows=table)
    assert (options.grace_s, options.torch_arguments(), options.redirects) == (4.0, (), 0)


_NEWER = _OLDER.replace(
    '    parser.add_argument("training_script", ',
    """    parser.add_argument("--log-line-prefix-template", "--log_line_prefix_template", action=env, default="")
    try:
        import shtab
    except ImportError:
        choices = ["bash"]
    parser.add_argument("--print-completion", action=_PrintCompletionAction, choices=choices)
    parser.add_argument("training_script", """,
)


def test_an_option_that_torchrun_answers_itself_is_left_to_it() -> None:
    table = read_table(_NEWER)
    with pytest.raises(Refused) as caught:
        parse(["--module", "--print-comp=bash"], {}, torch_rows=table)
    (problem,) = caught.value.problems
    assert (problem.word, problem.helps) == (1, ("torchrun --print-completion bash",))
    with pytest.raises(Refused):
        parse(["--config=p.toml", "x.py"], {}, torch_rows=table, read_file=lambda _path: "print-completion = 'bash'\n")


def test_a_newer_torchs_prefix_template_wins_over_its_variable() -> None:
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "variable"}
    line = ["--log-line-prefix-template=${rank}", "x.py"]
    assert parse(line, variable, torch_rows=read_table(_NEWER)).prefix_template == "${rank}"
    assert parse(line[1:], variable, torch_rows=read_table(_NEWER)).prefix_template == "variable"
    assert parse(line[1:], {}, torch_rows=read_table(_NEWER)).prefix_template is None
    for words, environ in (
        (["--log-line-prefix-template=", "t.py"], variable),
        (["t.py"], dict.fromkeys(variable, "")),
    ):
        assert parse(words, environ, torch_rows=read_table(_NEWER)).prefix_template == ""


def test_an_action_that_nobody_knows_is_handed_on() -> None:
    said = {"dest": "new", "type": "str", "default": None, "choices": None, "help": ""}
    rows = rows_of_actions(
        [
            {"flags": ["--new"], "action": "_Odd", "nargs": None, **said},
            {"flags": ["--other"], "action": "_Odd", "nargs": 0, **said, "dest": "other"},
        ]
    )
    options = parse(["--new", "1", "--other", "x.py"], {}, torch_rows=(*read_table(_OLDER), *rows))
    assert options.torch_arguments() == ("--new=1", "--other")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def other(): pass",
        "def get_args_parser(: pass",
        _OLDER.replace("action=env", "action='append'"),
        _OLDER.replace('parser.add_argument("--nnodes"', 'group.add_argument("--nnodes"'),
        _OLDER.replace('default="1:1"', "default=DEFAULT"),
        _OLDER.replace('    parser.add_argument("training_script", type=str)\n', ""),
    ],
)
def test_an_unknown_form_of_the_source_is_not_guessed(source: str) -> None:
    with pytest.raises(TableUnreadable):
        read_table(source)


COMMANDS = [("explain [PATH...]", "Print the verdict."), ("rules [WORD...]", "Print the causes.")]


def test_the_help_names_every_option_and_the_reference_ours(rows: tuple[Row, ...]) -> None:
    table = all_rows(rows)
    text = whole_help(table, COMMANDS, 90)
    for row in table:
        assert (f"\n  {row.name}" in text or f", {row.name}" in text) is not row.prints_and_exits
    reference = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [row.name for row in OWN_ROWS if f"\n| `{row.name}" not in reference] == []
    assert text.index("\n  --max-retries") < text.index("\n  --nnodes")
    assert max(map(len, text.splitlines())) <= 90
    assert {row.dest for row in OWN_ROWS} <= {row.dest for row in table}


def test_the_short_help_is_a_screen_with_examples_and_commands(rows: tuple[Row, ...]) -> None:
    for text in (short_help(all_rows(rows), COMMANDS, 90), whole_help(all_rows(rows), COMMANDS, 90)):
        assert text.count("\n  ddp-run --") == 3
        for word in ("ddp-run explain", "ddp-run rules", "--version", "Folder for all runs"):
            assert word in text
    assert len(short_help(all_rows(rows), COMMANDS, 90).splitlines()) < 50


# --------------------------------------------------------------------------------------------- rendering


def test_a_long_command_line_is_cut_around_the_word() -> None:
    argv = ["--a=" + "x" * 300, "--bad", "y" * 300]
    lines = render([Problem("DDP101", "t", 1, "here")], argv, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[4].index("^^^^^") == lines[3].index("--bad")


def test_control_characters_do_not_reach_the_terminal() -> None:
    argv = ["--a=\x1b[31m\n\udcff", "x"]
    text = render([Problem("DDP101", "bad \x1b]0;t\x07", 0, "l")], argv)
    assert "\x1b" not in text
    assert "\\x1b" in text
    text.encode()
    assert "\x1b[31;1merror" in render([Problem("DDP101", "t", 0)], argv, colour=True)


def test_a_missing_word_is_pointed_at_past_the_end() -> None:
    lines = render([Problem("DDP101", "t", 1, "here")], ["--x"]).splitlines()
    assert lines[4].index("^") == lines[3].index("--x") + 4


@pytest.mark.parametrize(
    ("words", "fixed", "own", "waits"),
    [
        ("--nnodes 2 --node-rank 1 --master-addr a", True, 1, (900.0, 0.0)),
        ("--nnodes 2 --node-rank 1 --master-addr a --rdzv-conf timeout=7", True, 1, (7.0, 0.0)),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1", True, None, (600.0, 60.0)),
        (
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-conf join_timeout=7,read_timeout=8",
            True,
            None,
            (7, 8),
        ),
        ("--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint a:1", False, None, (600.0, 60.0)),
        ("--nnodes 2 --rdzv-backend c10d", False, None, (600.0, 60.0)),
        ("--nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint a:1", False, None, (600.0, 60.0)),
        ("", False, 0, (600.0, 60.0)),
    ],
)
def test_how_nodes_meet(parsed: Parse, words: str, fixed: bool, own: int | None, waits: tuple[float, float]) -> None:
    options = parsed(f"{words} x.py")
    assert (options.has_fixed_nodes, options.own_node_rank) == (fixed, own)
    assert (options.rendezvous_s, options.store_s) == waits


@pytest.mark.parametrize(("said", "hosts"), [("1", True), ("True", True), ("no", False), ("", None)])
def test_who_has_the_store_can_be_said(parsed: Parse, said: str, hosts: bool | None) -> None:
    conf = f"--rdzv-conf is_host={said}" if said else ""
    assert parsed(f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1 {conf} x.py").hosts_store is hosts
