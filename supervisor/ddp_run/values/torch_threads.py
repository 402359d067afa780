"""How torch and the libraries below it name their threads, by which a process' threads are told apart. Pure.

Torch's and gloo's as seen, those of NCCL, RCCL and the drivers as in their sources. The program's own threads have the
program's name, which torch 2.4 changes to pt_main_thread. Torch 2.4 and 2.5 name none of theirs: there each counts as
the program's.
"""

import re

_LIBRARIES = "gloo|NCCL|RCCL|cuda|amdgpu|hsa|iou-wrk"

NOT_OF_THE_PROGRAM = re.compile(rf"pt_(?!main_thread)|{_LIBRARIES}")
WITHOUT_PYTHON = re.compile(rf"pt_(?:nccl|gloo|tcpstore|elastic)|{_LIBRARIES}")
"""Those that never run Python; the threads of autograd and of the DataLoader do."""
