"""What training libraries say in exceptions of general classes, beside texts that only look like it."""

from __future__ import annotations

import pytest

from ddp_run import explain

SITE = "/env/lib/python3.11/site-packages"
RAISED = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    main()
  File "{where}", line 120, in {function}
    {source}
{said}
"""
IN_LIBRARY = (f"{SITE}/trainer/core.py", "setup", "raise ValueError(")
OWN = "python-exception"
PACKAGES = (
    ("RuntimeError: TrackerCallback requires tracker to be installed.", "import-error"),
    ("ValueError: Please install fancyopt with `pip install fancyopt`", "import-error"),
    ("AssertionError: Apex is not installed. See its page.", "import-error"),
    ("MisconfigurationException: To use the strategy, you must have DeepSpeed installed.", "import-error"),
    ("RuntimeError: the fused extension module is not found. To use it you must install APEX", "import-error"),
    ("RuntimeError: Requirements for experts not installed; see README.md", "import-error"),
    ("RuntimeError: the NVIDIA driver is not installed on this machine", OWN),
    ("ValueError: 3 hooks are installed already", OWN),
    ("subprocess.CalledProcessError: Command 'pip install torch==2.1.0' returned non-zero exit status 1.", OWN),
    ("AssertionError: DeepSpeed version must be >= 0.16.4 for this", "version-mismatch"),
    ("RuntimeError: InternLM3 requires transformers>=4.47.1, please upgrade it.", "version-mismatch"),
    ("ValueError: FSDP2 is not supported on torch version < 2.7.0", "version-mismatch"),
    ("NotImplementedError: Placement requires `accelerate` version `0.28.0` or later.", "version-mismatch"),
    ("ValueError: a serious issue: we now require users to upgrade torch to at least v2.6", "version-mismatch"),
    ("NotImplementedError: x is not supported in your current Unsloth version!", "version-mismatch"),
    ("NotImplementedError: `epoch_end` has been removed in v2.0.0. Use the hook.", "version-mismatch"),
    ("ImportError: DeepSpeed version must be >= 0.9.3. Please update DeepSpeed.", "version-mismatch"),
    ("ValueError: no bf16 here: you need torch>=1.10, and an Ampere GPU", OWN),
    ("AssertionError: dropout must be < 1.0", OWN),
    ("ValueError: the learning rate must be >= 0.0, got -1", OWN),
    ("ValueError: requires --flash-attention-version 3", OWN),
    ("ValueError: num_heads >= 8 is required by this kernel", OWN),
    ("ValueError: Please update your config: `lr` is missing.", OWN),
    ("RuntimeError: Dataset scripts are no longer supported, but found x.py", "version-mismatch"),
    ("PydanticUserError: `regex` is removed. use `pattern` instead", "version-mismatch"),
)
PATHS = (
    ("AssertionError: Config file '/home/me/a.yaml' does not exist!", "file-not-found"),
    ("ValueError: Checkpoint directory does not exist: /data/out/checkpoint-500", "file-not-found"),
    ("ValueError: No file with name: a.safetensors found in /data/llama.", "file-not-found"),
    ("AssertionError: One of the .idx and .bin files cannot be found at the path prefix /data/x", "file-not-found"),
    ("ValueError: Can't find config.json at 'out/checkpoint-100'", "file-not-found"),
    ("ValueError: The passed configuration file `fsdp.yaml` does not exist.", "file-not-found"),
    ("OSError: Can't load tokenizer for '/m/x'. If you were trying to load it from 'h', make sure you don't have a "
     "local directory with the same name.", "file-not-found"),
    ("ValueError: could not find the monitored key 'val/loss' in the metrics", OWN),
    ("ValueError: Metric 'val/loss' not found", OWN),
    ("RuntimeError: key 'lm_head' not found in /data/x.json", OWN),
    ("RuntimeError: Repository at https://host/api/models/x.json not found", OWN),
    ("ValueError: Column text not found in dataset!", OWN),
    ("ValueError: Could not find version in /data/setup.py", OWN),
    ("ValueError: transform '/a/b' is missing key 'c'", OWN),
)  # fmt: skip
NUMBERS = (
    ("RuntimeError: Train loss contains a NaN.", "nan-divergence"),
    ("RuntimeError: Infinite or NaN tensor found.", "nan-divergence"),
    ("ValueError: Input contains NaN.", OWN),
    ("ValueError: Audio contains NaN values", OWN),
    ("ValueError: loss_scale must be a finite number (not inf/-inf/nan)", OWN),
    ("RuntimeError: information about the loss is not available", OWN),
)
CHECKPOINTS = (
    ("Exception: Cannot load parameters from checkpoint x.pt; please ensure that the architectures match.",
     "checkpoint-mismatch"),
    ("AssertionError: num_layers value from checkpoint (24) is not equal to the input argument value (32).",
     "checkpoint-mismatch"),
    ("AssertionError: checkpoint count 4 is different from saved mp_world_size 8", "checkpoint-mismatch"),
    ("RuntimeError: use_reentrant=True checkpoint is incompatible with .grad()", OWN),
    ("ValueError: gradient checkpoint does not match the layer", OWN),
    ("ValueError: Checkpoint at /ckpt/ep1.pt is invalid.", "checkpoint-corrupt"),
    ("ValueError: the checkpoint is empty and not corrupted", OWN),
)  # fmt: skip
DEVICES = (
    ("AssertionError: Megatron requires CUDA.", "cuda-unavailable"),
    ("RuntimeError: GPU is required to quantize the model.", "cuda-unavailable"),
    ("RuntimeError: this kernel requires CUDA tensors.", OWN),
    ("RuntimeError: `graphs` requires CUDA graphs to be off", OWN),
)


@pytest.mark.parametrize(("said", "cause"), (*PACKAGES, *PATHS, *NUMBERS, *CHECKPOINTS, *DEVICES))
def test_raised_in_a_library(said: str, cause: str) -> None:
    where, function, source = IN_LIBRARY
    found = explain(RAISED.format(where=where, function=function, source=source, said=said))
    assert found.cause == cause
    assert found.confidence == "likely"


@pytest.mark.parametrize(
    ("where", "function", "source", "said", "cause"),
    [
        ("/w/megatron/training/arguments.py", "validate_args", "assert a == b, (",
         "AssertionError: world size (6) is not divisible", "bad-arguments"),
        ("/w/hparams/parser.py", "get_train_args", "raise ValueError(", "ValueError: Please give a model.",
         "bad-arguments"),
        ("/w/hparams/parser.py", "get_train_args", "value = int(text)", "ValueError: invalid literal for int()", OWN),
        ("/w/hparams/parser.py", "get_train_args", "raise KeyError(", "KeyError: 'lr'", OWN),
        (f"{SITE}/a/b.py", "f", "assert x, (", "AssertionError: --overlap needs the distributed optimizer",
         "bad-arguments"),
        (f"{SITE}/a/b.py", "f", "raise ValueError(", "ValueError: --model-file /data/x.pt does not exist",
         "file-not-found"),
        (f"{SITE}/a/b.py", "f", "self.a.unwrap(model, keep=False)",
         "TypeError: Accelerator.unwrap() got an unexpected keyword argument 'keep'", "version-mismatch"),
        (f"{SITE}/a/b.py", "f", "return Model(config, **kwargs)",
         "TypeError: Model.__init__() got an unexpected keyword argument 'load_in_8bit'", OWN),
        ("/w/train.py", "f", "Trainer(gpus=8)",
         "TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'", OWN),
        (f"{SITE}/a/b.py", "f", "raise ImportError(",
         "ImportError: Using it requires `accelerate>=0.26.0`: run `pip install accelerate`", "import-error"),
        (f"{SITE}/transformers/models/auto/configuration_auto.py", "__getitem__", "raise KeyError(key)",
         "KeyError: 'qwen9'", "version-mismatch"),
    ],
)  # fmt: skip
def test_where_it_was_raised_tells(where: str, function: str, source: str, said: str, cause: str) -> None:
    assert explain(RAISED.format(where=where, function=function, source=source, said=said)).cause == cause


@pytest.mark.parametrize(
    "text",
    [
        "Could not override 'trainer.max_epoch'.\nTo append to your config use +trainer.max_epoch=10\n"
        "Key 'max_epoch' is not in struct\n",
        'usage: main.py [-h] [-c CONFIG]\nerror: Parser key "model":\n  Key "hidden" is not expected\n',
        "ERROR: Could not consume arg: --epochs\nUsage: train.py <flags>\n",
        "usage: tune run [OPTIONS] <recipe>\ntune run: error: Config 'llama' not found.\n",
        "╭─ Unrecognized options ───╮\n│ Unrecognized options: --gpus 8   │\n╰──────────────────────────╯\n",
    ],
)
def test_parsers_that_print_what_they_reject(text: str) -> None:
    assert explain(f"loading\n{text}").cause == "bad-arguments"


def test_a_parser_of_another_tool_is_not_the_scripts() -> None:
    assert (
        explain("usage: train.py\ngcc: error: unrecognized argument: -mfoo\nstep 3 loss 0.2\n").cause != "bad-arguments"
    )
