"""Wordings of data, files, checkpoints, remote services and versions, beside texts that only look like them."""

from __future__ import annotations

import pytest

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import ExceptionInfo, Rank

PLACE = '  File "/home/user/train.py", line 10, in main\n'
RAISED: tuple[tuple[str, str, str, str], ...] = (
    ("KeyError", "'optimizer'", '    lr = config["optimizer"]["lr"]', "python-exception"),
    ("KeyError", "'model'", '    model = state["model"]', "checkpoint-mismatch"),
    ("KeyError", "'model'", '    m = torch.load(path)["model"]', "checkpoint-mismatch"),
    ("KeyError", "'input_ids'", '    ids = batch["input_ids"]', "python-exception"),
    ("KeyError", "'ema'", '    self.ema.load_state_dict(payload["ema"])', "checkpoint-mismatch"),
    ("ValueError", "cannot convert float NaN to integer", "", "python-exception"),
    ("ValueError", "Input contains NaN.", "", "python-exception"),
    ("RuntimeError", "Loss function nll_loss expects information about shapes", "", "python-exception"),
    ("ValueError", "loss must be one of: mse, info_nce", "", "python-exception"),
    ("ValueError", "unknown loss: infonce", "", "python-exception"),
    ("ValueError", "loss=nan", "", "nan-divergence"),
    ("RuntimeError", "NaN loss encountered at iteration 12", "", "nan-divergence"),
    ("RuntimeError", "Train loss is nan or inf.", "", "nan-divergence"),
    (
        "Exception",
        "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "",
        "nan-divergence",
    ),
    ("FloatingPointError", "underflow encountered in multiply", "    return x * window", "python-exception"),
    ("FloatingPointError", "overflow encountered in exp", "    return np.exp(x)", "nan-divergence"),
    (
        "SyntaxError",
        "unterminated string literal (detected at line 1)",
        '    return ast.literal_eval(row)\n  File "/usr/lib/python3.11/ast.py", line 64, in literal_eval\n    node = '
        "parse(node, mode='eval')\n  File \"<unknown>\", line 1\n    ['a', 'b\n         ^",
        "python-exception",
    ),
    (
        "SyntaxError",
        "unterminated string literal (detected at line 4)",
        '    from model import Net\n  File "/home/user/model.py", line 4\n    x = \'a\n        ^',
        "syntax-or-usage",
    ),
    (
        "MemoryError",
        "replay buffer full: 100000 items",
        "    raise MemoryError(f'replay buffer full: {n} items')",
        "python-exception",
    ),
    ("MemoryError", "", "    x = bytearray(10**15)", "host-oom"),
    ("FileNotFoundError", "[Errno 2] No such file or directory", "    s.connect(address)", "python-exception"),
    ("OSError", "[Errno 5] Input/output error", "    file.read()", "filesystem-error"),
    (
        "HTTPError",
        "403 Client Error: rate limit exceeded for url: https://api.github.com/repos/pytorch/vision/zipball/main",
        "    raise HTTPError(http_error_msg, response=self)",
        "hub-network",
    ),
    ("FloatingPointError", "Loss became infinite or NaN at iteration=300!", "", "nan-divergence"),
    (
        "ValueError",
        (
            "Expected parameter logits (Tensor of shape (2, 4)) of distribution Categorical(logits: "
            "torch.Size([2, 4])) to satisfy the constraint IndependentConstraint(Real(), 1), but found invalid "
            "values:\ntensor([[nan, nan],\n[nan, nan]])"
        ),
        "",
        "nan-divergence",
    ),
    (
        "ValueError",
        (
            "Expected parameter scale (Tensor of shape (2,)) of distribution Normal to satisfy the constraint "
            "GreaterThan(lower_bound=0.0), but found invalid values:\ntensor([-1., 2.])"
        ),
        "",
        "python-exception",
    ),
    ("PermissionError", "[Errno 13] Permission denied: '/root/.cache/huggingface/token'", "", "permission-denied"),
    ("OSError", "[Errno 5] Input/output error", '    print("step", step)', "terminal-closed"),
    ("OSError", "[Errno 116] Stale file handle: '/nfs/data/x.bin'", "", "filesystem-error"),
    ("OSError", "[Errno 107] Transport endpoint is not connected", "    sock.shutdown(2)", "python-exception"),
    ("OSError", "[Errno 107] Transport endpoint is not connected: '/mnt/s3/data'", "", "filesystem-error"),
    ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "    sock.recv(1)", "python-exception"),
    ("OSError", "[Errno 12] Cannot allocate memory", "    os.fork()", "host-oom"),
    (
        "RuntimeError",
        (
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
            "to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "",
        "host-oom",
    ),
    (
        "numpy._core._exceptions._ArrayMemoryError",
        "Unable to allocate 37.3 GiB for an array with shape (100000, 50000) and data type float64",
        "",
        "host-oom",
    ),
    ("pyarrow.lib.ArrowMemoryError", "malloc of size 4294967296 failed", "", "host-oom"),
    ("RuntimeError", "received 0 items of ancdata", "", "too-many-open-files"),
    ("OSError", "[Errno 122] Disk quota exceeded: '/home/u/out/ckpt.pt'", "", "disk-full"),
    ("sqlite3.OperationalError", "database or disk is full", "", "disk-full"),
    ("OSError", "[Errno 28] inotify watch limit reached", "", "python-exception"),
    ("_pickle.UnpicklingError", "invalid load key, '<'.", "", "checkpoint-corrupt"),
    ("EOFError", "Ran out of input", "", "checkpoint-corrupt"),
    (
        "EOFError",
        "Ran out of input",
        (
            '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 130, in _main\n    self = '
            "reduction.pickle.load(from_parent)"
        ),
        "python-exception",
    ),
    (
        "_pickle.UnpicklingError",
        "Weights only load failed. x\nWeightsUnpickler error: Unsupported operand 149",
        "",
        "version-mismatch",
    ),
    (
        "ImportError",
        "/opt/x/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "",
        "version-mismatch",
    ),
    (
        "ImportError",
        (
            "/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by "
            "/opt/conda/lib/python3.10/site-packages/foo.so)"
        ),
        "",
        "version-mismatch",
    ),
    ("RuntimeError", "operator torchvision::nms does not exist", "", "version-mismatch"),
    ("ImportError", "cannot import name 'cached_download' from 'huggingface_hub' (/x/__init__.py)", "", "import-error"),
    ("AttributeError", "module 'torch' has no attribute 'fload'", "", "python-exception"),
    ("AttributeError", "module 'numpy' has no attribute 'objekt'", "", "python-exception"),
    (
        "pkg_resources.VersionConflict",
        "(protobuf 4.25.3 (/x/site-packages), Requirement.parse('protobuf<4'))",
        "",
        "version-mismatch",
    ),
    (
        "ValueError",
        (
            "numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 "
            "from PyObject"
        ),
        "",
        "version-mismatch",
    ),
    (
        "requests.exceptions.HTTPError",
        "401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x/y?token=hf_secret",
        "",
        "auth",
    ),
    (
        "requests.exceptions.HTTPError",
        "503 Server Error: Service Unavailable for url: https://huggingface.co/x",
        "",
        "hub-network",
    ),
    (
        "requests.exceptions.ConnectionError",
        (
            "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by "
            "NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7>: Failed to establish a new "
            "connection: [Errno 101] Network is unreachable'))"
        ),
        "",
        "hub-network",
    ),
    ("ConnectionError", "Couldn't reach 'glue' on the Hub (LocalEntryNotFoundError)", "", "hub-network"),
    (
        "urllib.error.URLError",
        (
            "<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self signed certificate "
            "in certificate chain (_ssl.c:1007)>"
        ),
        "",
        "hub-network",
    ),
    (
        "botocore.exceptions.ClientError",
        "An error occurred (ExpiredToken) when calling the GetObject operation: The provided token has expired.",
        "",
        "auth",
    ),
    (
        "botocore.exceptions.ClientError",
        "An error occurred (404) when calling the HeadObject operation: Not Found",
        "",
        "file-not-found",
    ),
    ("wandb.errors.UsageError", "api_key not configured (no-tty). call wandb.login(key=[your_api_key])", "", "auth"),
    (
        "OSError",
        (
            "meta-lama/x is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having "
            "permission to this repo"
        ),
        "",
        "file-not-found",
    ),
    (
        "OSError",
        (
            "./out does not appear to have a file named config.json. Checkout "
            "'https://huggingface.co/./out/tree/main' for available files."
        ),
        "",
        "file-not-found",
    ),
    (
        "FileNotFoundError",
        "[Errno 2] No such file or directory: 'ffmpeg'",
        (
            '  File "/usr/lib/python3.10/subprocess.py", line 1863, in _execute_child\n    raise '
            "child_exception_type(errno_num, err_msg, err_filename)"
        ),
        "file-not-found",
    ),
    (
        "concurrent.futures.process.BrokenProcessPool",
        "A process in the process pool was terminated abruptly while the future was running or pending.",
        "",
        "dataloader-worker-died",
    ),
    (
        "RuntimeError",
        "One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
        "",
        "dataloader-worker-died",
    ),
    ("RuntimeError", "DataLoader timed out after 60 seconds", "", "python-exception"),
    ("lmdb.Error", "/data/train_lmdb: No such file or directory", "", "file-not-found"),
    ("RuntimeError", 'Failed to open the input "/data/a.flac" (No such file or directory).', "", "file-not-found"),
    ("tf.errors_impl.NotFoundError", "/data/a.tfrecord; No such file or directory [Op:Next]", "", "file-not-found"),
    (
        "RuntimeError",
        "unable to open shared memory object </torch_1_2> in read-only mode: No such file or directory (2)",
        "",
        "python-exception",
    ),
    ("OSError", "/opt/x/libfoo.so.1: cannot open shared object file: No such file or directory", "", "import-error"),
    ("ValueError", "Model path does not exist: /models/q4.gguf", "", "file-not-found"),
    ("AssertionError", "./data/train does not exist", "", "file-not-found"),
    ("ValueError", "Parameter params/head/bias does not exist", "", "python-exception"),
    ("ValueError", "Data directory not found: ./data/train", "", "file-not-found"),
    ("ValueError", "File data/identity.json not found.", "", "file-not-found"),
    ("RuntimeError", "index: could not open /d/a.faiss for reading: No such file or directory", "", "file-not-found"),
    ("ValueError", "Can't find config.json at 'out/checkpoint-100'", "", "file-not-found"),
    ("ValueError", "adapter model file not found in out/lora. Make sure of the path", "", "file-not-found"),
    ("ValueError", "No file with name: a.safetensors found in /models/llama.", "", "file-not-found"),
    ("ValueError", "tokenizer.json not found in /models/x", "", "file-not-found"),
    ("openai.NotFoundError", "The model `org/net` does not exist.", "", "python-exception"),
    ("RuntimeError", "a.b.c not found", "", "python-exception"),
    ("RuntimeError", "Checkpoint /runs/last.pt is corrupted", "", "checkpoint-corrupt"),
    ("RuntimeError", "malloc(): corrupted top size", "", "python-exception"),
    ("RuntimeError", "Unexpected key(s) in state dict when loading: head.bias", "", "checkpoint-mismatch"),
    ("ValueError", "shape (3,) but got (4,). Pass `ignore_mismatched_sizes=True`", "", "checkpoint-mismatch"),
    ("ValueError", "Key 'lr' not found in /configs/base.yaml", "", "python-exception"),
    ("ValueError", "Model class Net not found in /models/net.py", "", "python-exception"),
    ("AssertionError", "/data/kinetics/train.csv not exist", "", "file-not-found"),
    ("ValueError", "Output directory must not exist: /out/run1", "", "python-exception"),
    ("ValueError", "Output directory /out/run1 already exists and is not empty", "", "python-exception"),
    ("RuntimeError", "Could not find checkpoint file at /ckpt/best.pt", "", "file-not-found"),
    ("RuntimeError", "Could not find a good learning rate, see /out/log.txt", "", "python-exception"),
    ("ValueError", "No files found in /data/shards matching *.tar", "", "file-not-found"),
    ("ValueError", "No tensors found in the batch /s", "", "python-exception"),
    ("AssertionError", "Path /data/coco/train2017 is not a directory", "", "file-not-found"),
    ("RuntimeError", "Found 0 images in subfolders of /data/train.", "", "file-not-found"),
    ("RuntimeError", "Found 0 GPUs in the node", "", "python-exception"),
    ("AssertionError", "num_layers value from checkpoint (24) is not equal to 32.", "", "checkpoint-mismatch"),
    ("ValueError", "the output of gradient checkpointing does not match", "", "python-exception"),
    ("RuntimeError", "size mismatch between q and k", "", "python-exception"),
    ("x.NotFoundError", "Key _CHECKPOINTABLE_OBJECT_GRAPH not found in checkpoint", "", "checkpoint-mismatch"),
    ("ValueError", "Tokens not found in vocabulary", "", "python-exception"),
    ("safetensors_rust.SafetensorError", "File does not contain tensor lm_head.weight", "", "checkpoint-mismatch"),
    ("RuntimeError", "column 'text' does not exist", "", "python-exception"),
    ("OSError", "[E050] Can't find model 'en_core_web_sm'. It doesn't seem to be a package", "", "file-not-found"),
    ("OSError", "Can't load tokenizer for 'a/b'. If you were trying to load it from the Hub", "", "file-not-found"),
    ("OSError", "Can't load the weights: wrong shape", "", "python-exception"),
    (
        "LookupError",
        "\n**\n  Resource punkt_tab not found.\n  Please use the NLTK Downloader to obtain the resource:",
        "",
        "file-not-found",
    ),
    ("LookupError", "Resource punkt_tab not found.", "", "python-exception"),
    ("lmdb.LockError", "/data/train.lmdb: Permission denied", "", "permission-denied"),
    ("RuntimeError", "git@example.org: Permission denied (publickey).", "", "python-exception"),
    ("lmdb.ReadonlyError", "/data/train.lmdb: Read-only file system", "", "filesystem-error"),
    (
        "OSError",
        "[Errno 5] Error reading bytes from file. Detail: [errno 5] Input/output error",
        "",
        "filesystem-error",
    ),
    ("TimeoutError", "[Errno 110] Connection timed out: '/mnt/nfs/data'", "", "filesystem-error"),
    ("TimeoutError", "[Errno 110] Connection timed out", "    sock.connect(address)", "python-exception"),
    ("OSError", "[Errno 16] Device or resource busy: '/data/.nfs0001'", "", "filesystem-error"),
    ("OSError", "[Errno 16] Device or resource busy: '/dev/nvidia0'", "", "python-exception"),
    ("OSError", "Not enough disk space. Needed: 745.21 GiB (download: 305 GiB)", "", "disk-full"),
    ("FileNotFoundError", "[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']", "", "disk-full"),
    ("pandas.errors.ParserError", "Error tokenizing data. C error: out of memory", "", "host-oom"),
    ("pandas.errors.ParserError", "Error tokenizing data. C error: Expected 3 fields, saw 5", "", "python-exception"),
    ("SyntaxError", "broken PNG file (chunk b'x')", "    raise SyntaxError(msg)", "python-exception"),
    ("SyntaxError", "invalid syntax (x.py, line 3)", '  File "/x.py", line 3\n    a b\n      ^', "syntax-or-usage"),
    ("RuntimeError", "Invalid magic number; corrupt file?", "", "checkpoint-corrupt"),
    ("OSError", "Unable to open file (truncated file: eof = 10, sblock->base_addr = 0)", "", "checkpoint-corrupt"),
    ("OSError", "Unable to create file (errno = 17, error message = 'File exists')", "", "python-exception"),
    ("EOFError", "Compressed file ended before the end-of-stream marker was reached", "", "checkpoint-corrupt"),
    ("RuntimeError", "Missing key in checkpoint state_dict: model.layers.0.weight.", "", "checkpoint-mismatch"),
    (
        "deepspeed.runtime.zero.utils.ZeRORuntimeException",
        (
            "The checkpoint being loaded used a DP world size of 8 but the current world size is 16. Automatic "
            "adjustment of ZeRO's"
        ),
        "",
        "checkpoint-mismatch",
    ),
    (
        "RuntimeError",
        (
            "Error(s) in loading state_dict for DistributedDataParallel:\n\tMissing key(s) in state_dict: "
            '"module.a.weight", "module.b.weight". \n\tUnexpected key(s) in state_dict: "a.weight", "b.weight". '
        ),
        "",
        "checkpoint-mismatch",
    ),
    (
        "ValueError",
        "Some specified arguments are not used by the HfArgumentParser: ['--foo', '1']",
        "",
        "bad-arguments",
    ),
)
SILENT: tuple[tuple[str, int, str], ...] = (
    ("WARNING 503 Server Error: Service Unavailable for url: https://huggingface.co/x, retrying", -9, "unknown"),
    ("[Errno 28] No space left on device", -9, "unknown"),
    ("OSError: [Errno 24] Too many open files", -15, "preempted-sigterm"),
    ("step 3 loss: nan", 1, "unknown"),
    ("Loss is nan, stopping training", 1, "nan-divergence"),
    ("  what():  Resource temporarily unavailable", -6, "process-limit"),
    ("libgomp: Thread creation failed: Resource temporarily unavailable", 1, "process-limit"),
    ("  what():  std::bad_alloc", -6, "host-oom"),
    ("  what():  std::bad_alloc: cudaErrorMemoryAllocation: out of memory", -6, "cuda-oom"),
    ("  what():  [enforce fail at inline_container.cc:325] . unexpected pos 640 vs 570", -6, "disk-full"),
)


@pytest.mark.parametrize(("kind", "message", "source", "cause"), RAISED)
def test_raised(kind: str, message: str, source: str, cause: str) -> None:
    text = f"Traceback (most recent call last):\n{PLACE}{source or '    main()'}\n{kind}: {message}"
    raised = ExceptionInfo(kind, message, "/home/user/train.py", 10, "main", text)
    death = Death(rank=Rank(0), code=1, exception=raised, stderr=LogText("log", tuple(text.split("\n"))))
    verdict = judge(Evidence(deaths=(death,), started=1))
    assert (verdict.cause, verdict.notes) == (cause, ())
    assert "hf_secret" not in (verdict.title or "") + " ".join(verdict.advice)


@pytest.mark.parametrize(("line", "code", "cause"), SILENT)
def test_last_words(line: str, code: int, cause: str) -> None:
    death = Death(rank=Rank(1), code=code, stderr=LogText("log", ("step 1", line, "step 2")))
    verdict = judge(Evidence(deaths=(death,), started=2))
    assert (verdict.cause, verdict.notes) == (cause, ())
