"""Packages known to depend on what is loaded first, imported before torch: a warm rank, which has torch already, is
compared with a cold one.

A package that isn't installed is skipped. For all of them, in an environment of their own with torch:
    pip install -e '.[dev]' numpy scipy opencv-python-headless pandas pyarrow scikit-learn numba pillow matplotlib \
        tensorflow jax h5py lightgbm xgboost faiss-cpu transformers threadpoolctl
    pytest -m slow_system tests/system/test_import_order.py
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import Any

import pytest

from .conftest import Launcher, Outcome

WORK = {
    "numpy": "out = numpy.linalg.svd(numpy.vander(numpy.linspace(0, 1, 60)))[1].tolist()",
    "scipy": """
import scipy.linalg
out = scipy.linalg.eigvalsh(scipy.linalg.hilbert(60)).tolist()
""",
    "cv2": """
import numpy
image = numpy.arange(3e4).reshape(100, 300)
out = [cv2.getNumThreads(), float(cv2.GaussianBlur(image, (7, 7), 2).sum())]
""",
    "pandas": "out = pandas.DataFrame({'a': range(999), 'b': range(999)}).groupby(lambda n: n % 7).mean().b.tolist()",
    "pyarrow": """
import pyarrow.compute
out = [pyarrow.cpu_count(), pyarrow.compute.stddev(list(range(999))).as_py()]
""",
    "sklearn": """
import numpy
from sklearn.cluster import KMeans
out = KMeans(5, random_state=1).fit(numpy.sin(numpy.arange(4000)).reshape(-1, 4)).cluster_centers_.tolist()
""",
    "numba": """
@numba.njit(parallel=True)
def total(n):
    s = 0.0
    for i in numba.prange(n):
        s += i ** 0.5
    return s
out = [total(100_000), numba.get_num_threads(), numba.threading_layer()]
""",
    "PIL": """
from PIL import Image
out = list(Image.linear_gradient("L").rotate(30).resize((9, 9), Image.LANCZOS).tobytes())
""",
    "matplotlib": """
import hashlib, io
matplotlib.use("agg")
from matplotlib import pyplot
pyplot.plot([3, 1, 2])
file = io.BytesIO()
pyplot.savefig(file, format="raw")
out = hashlib.sha256(file.getvalue()).hexdigest()
""",
    "tensorflow": """
data = tensorflow.reshape(tensorflow.range(1e4), (100, 100))
threads = tensorflow.config.threading.get_intra_op_parallelism_threads()
out = [float(tensorflow.reduce_sum(tensorflow.sin(data @ data))), threads]
""",
    "jax": """
import jax.numpy
out = float(jax.numpy.sin(jax.numpy.arange(1e4).reshape(100, 100) @ jax.numpy.ones(100)).sum())
""",
    "h5py": """
import io
file = h5py.File(io.BytesIO(), "w")
file["a"] = list(range(99))
out = file["a"][:].tolist()
""",
    "lightgbm": """
import numpy
x = numpy.sin(numpy.arange(2000.0)).reshape(-1, 2)
out = lightgbm.LGBMRegressor(verbose=-1).fit(x, x[:, 0]).predict(x[:9]).tolist()
""",
    "xgboost": """
import numpy
x = numpy.sin(numpy.arange(2000.0)).reshape(-1, 2)
out = xgboost.XGBRegressor(n_estimators=5).fit(x, x[:, 0]).predict(x[:9]).tolist()
""",
    "faiss": """
import numpy
x = numpy.sin(numpy.arange(4000.0)).reshape(-1, 4).astype("float32")
index = faiss.IndexFlatL2(4)
index.add(x)
out = [index.search(x[:5], 3)[1].tolist(), faiss.omp_get_max_threads()]
""",
    "tokenizers": """
import tokenizers.pre_tokenizers
out = tokenizers.pre_tokenizers.Whitespace().pre_tokenize_str("a warm rank")
""",
    "transformers": """
import torch
torch.manual_seed(1)
from transformers import BertConfig, BertModel
model = BertModel(BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)).eval()
out = model(torch.arange(9)[None])[0].sum().item()
""",
}
"""What a program does with each, after its import; `out` is what it shows."""
PROGRAM = """
import json, os, sys
before = "torch" in sys.modules
import %s
%s
import torch
torch.manual_seed(1)
also = (torch.randn(99, 99) @ torch.randn(99, 99)).sum().item()
pools = []
try:
    import threadpoolctl
    pools = sorted(threadpoolctl.threadpool_info(), key=lambda pool: pool["filepath"])
except ImportError:
    pass
libraries = sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line})
threads = sorted(open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task"))
of_a_run = "DDP_RUN", "TORCHELASTIC", "MASTER", "NCCL_"
environ = {name: value for name, value in os.environ.items() if not name.startswith(of_a_run)}
print(json.dumps({
    "torch imported before": before, "out": out, "torch's result": also, "thread pools": pools,
    "torch's threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "libraries": libraries, "threads": threads, "environment": environ, "filters": repr(sys.warnoptions),
    "default type": str(torch.get_default_dtype()), "encoding": [sys.stdout.encoding, sys.getfilesystemencoding()],
}, default=repr))
"""


_GOMP = "/libgomp.so.1"
FIND_SYSTEMS_GOMP = frozenset({"numba", "lightgbm"})
"""They ask for a library of this name, which torch has too. The one that is loaded first serves all: the system's in a
cold rank, torch's own in a warm one."""


def _seen(outcome: Outcome, package: str) -> dict[str, Any]:
    """All that rank 0 shows of itself."""
    assert outcome.code == 0, outcome.stderr
    assert outcome.folder is not None
    rank = outcome.folder / "attempt_0" / "rank_0"
    *printed, last = (rank / "stdout.log").read_text().splitlines()
    stderr = re.sub(r"\d+", "#", (rank / "stderr.log").read_text())
    seen = {**json.loads(last), "stdout": printed, "stderr": stderr.splitlines()}
    if package in FIND_SYSTEMS_GOMP:
        seen["thread pools"] = [pool for pool in seen["thread pools"] if _GOMP not in pool["filepath"]]
        seen["libraries"] = [library for library in seen["libraries"] if _GOMP not in library]
    return seen


@pytest.mark.slow_system
@pytest.mark.parametrize("package", WORK)
def test_a_package_imported_before_torch_is_as_in_a_cold_rank(ddp: Launcher, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = ddp.script(PROGRAM % (package, WORK[package]))
    cold, warm = (ddp(*words, "--nproc-per-node=1", program, env={"DDP_RUN_WARM": ""}) for words in ((), ("--warm",)))
    assert [event["text"] for event in warm.named("Noted")] == [], "it was warm"
    assert _seen(warm, package) == _seen(cold, package)
