"""First line of a rank, run by path: `python -u …/rank/__main__.py MODE WORDS…`; modes are in bootstrap.py."""

names = list(globals())  # what Python itself puts here; the program's own module must start with just that

import sys  # noqa: E402
from _frozen_importlib_external import SourceFileLoader  # noqa: E402  # loaded already; has the .pyc cache

folder = __file__[: -len("__main__.py")]
loader = SourceFileLoader("ddp_run.rank.bootstrap", folder + "bootstrap.py")
bootstrap = type(sys)("ddp_run.rank.bootstrap")
exec(loader.get_code("ddp_run.rank.bootstrap"), bootstrap.__dict__)  # type: ignore[arg-type]
bootstrap.main(globals(), names, __file__)
