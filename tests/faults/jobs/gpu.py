"""What GPU programs die of: two ranks that train over NCCL, on one GPU if there is only one, and rank 1 strikes.

gpu.py FAULT [RANK]
"""

import gc
import logging
import os
import signal
import sys

if "blocking" in sys.argv[1]:
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
if sys.argv[1] == "hidden" and os.environ["RANK"] == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANK, LOCAL = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
FAULT, FAULTY = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
# NCCL refuses two ranks of one host on one GPU: each calls itself another host.
os.environ |= {"NCCL_HOSTID": f"host-{LOCAL}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
HUGE = 1 << 42
"""Bytes that no GPU has."""


def before_init():
    if FAULT == "ordinal":
        torch.cuda.set_device(63)  # <- ordinal
    if FAULT == "hidden":
        torch.zeros(1, device="cuda")  # <- hidden
    if FAULT == "load-elsewhere":
        torch.save({"w": torch.zeros(3, device="cuda")}, f"elsewhere-{RANK}.pt")
        torch.load(f"elsewhere-{RANK}.pt", map_location="cuda:63")  # <- load-elsewhere


class InFork(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(1, device="cuda")  # <- fork


class BreaksBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.new_empty(HUGE)  # <- oom-backward


def memory():
    if FAULT == "oom":
        torch.empty(HUGE, dtype=torch.uint8, device="cuda")  # <- oom
    if FAULT == "oom-activation":
        torch.cuda.set_per_process_memory_fraction(0.02)
        x = torch.ones(16384, 16384, device="cuda", requires_grad=True)
        for _ in range(20):
            x = (x @ x).relu()  # <- oom-activation
    if FAULT == "oom-backward":
        BreaksBackwards.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()  # <- oom-call
    if FAULT in ("oom-survived", "oom-then-raise"):
        try:
            torch.empty(HUGE, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(f"WARNING: ran out of memory, skipping the batch: {error}", flush=True)
            torch.cuda.empty_cache()
    if FAULT == "oom-reraised":
        try:
            torch.empty(HUGE, dtype=torch.uint8, device="cuda")  # <- oom-reraised
        except torch.OutOfMemoryError as error:
            raise RuntimeError("batch of 64 is too large") from error
    if FAULT == "oom-logged":
        try:
            torch.empty(HUGE, dtype=torch.uint8, device="cuda")  # <- oom-logged
        except torch.OutOfMemoryError:
            logging.exception("training failed")
            sys.exit(3)
    if FAULT == "oom-jax":
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax.numpy

        jax.numpy.ones((HUGE,), dtype="uint8").block_until_ready()  # <- oom-jax
    if FAULT == "oom-cupy":
        import cupy

        cupy.ones(HUGE, dtype="uint8")  # <- oom-cupy
    if FAULT == "oom-pinned":
        torch.empty(HUGE, dtype=torch.uint8, pin_memory=True)  # <- oom-pinned


def asserts():
    if FAULT in ("assert-index", "blocking-index"):
        table = torch.nn.Embedding(10, 4, device="cuda")
        table(torch.tensor([3, 99], device="cuda")).sum().item()  # <- blocking-index
    if FAULT == "assert-label":
        loss = F.cross_entropy(torch.randn(4, 10, device="cuda"), torch.tensor([1, 2, 3, 10], device="cuda"))
        print(loss.item())
    if FAULT == "assert-gather":
        print(torch.ones(4, 4, device="cuda").gather(1, torch.full((4, 1), 7, device="cuda")))
    if FAULT == "assert-bce":
        print(F.binary_cross_entropy(torch.full((4,), 1.5, device="cuda"), torch.ones(4, device="cuda")))
    if FAULT == "assert-multinomial":
        print(torch.multinomial(torch.full((4, 8), float("nan"), device="cuda"), 1))
    if FAULT == "assert-async":
        torch._assert_async(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
    if FAULT == "assert-then-save":
        model = torch.nn.Embedding(10, 4, device="cuda")
        try:
            print(model(torch.tensor([99], device="cuda")))
        except RuntimeError:
            torch.save(model.state_dict(), f"emergency-{RANK}.pt")
            raise
    if FAULT == "assert-then-own":
        try:
            print(torch.ones(4, device="cuda")[torch.tensor([9], device="cuda")])
        except RuntimeError:
            raise RuntimeError("epoch 3 failed")  # noqa: B904


def kernels():
    import bad_kernel

    if FAULT == "illegal":
        bad_kernel.launch()
        torch.cuda.synchronize()
    if FAULT == "misaligned":
        bad_kernel.launch(torch.ones(4, device="cuda").data_ptr() + 1)
        torch.cuda.synchronize()
    if FAULT == "trap":
        bad_kernel.launch(16, b"trap;")
        torch.cuda.synchronize()
    if FAULT == "illegal-in-ddp":
        bad_kernel.launch()
    if FAULT == "illegal-cupy":
        import cupy

        wild = cupy.RawKernel('extern "C" __global__ void wild(int *p) { p[1L << 40] = 1; }', "wild")
        wild((1,), (1,), (cupy.zeros(1, dtype="int32"),))
        cupy.cuda.Device().synchronize()
    if FAULT == "nvrtc":
        import cupy

        cupy.RawKernel('extern "C" __global__ void f() { int x = ; }', "f")((1,), (1,), ())  # <- nvrtc
    if FAULT == "illegal-numba":
        import numba.cuda
        import numpy

        @numba.cuda.jit
        def wild(values):
            values[1 << 40] = 1

        wild[1, 1](numba.cuda.to_device(numpy.zeros(1)))
        numba.cuda.synchronize()
    if FAULT.startswith("triton"):
        import triton_kernels

        getattr(triton_kernels, FAULT.removeprefix("triton_"))()


def compilers():
    if FAULT == "compile-break":

        def broken(x):
            print(x.sum().item())
            return x

        torch.compile(broken, fullgraph=True)(torch.ones(3, device="cuda"))  # <- compile-break
    if FAULT == "compile-no-cc":
        os.environ |= {"CC": "/nonexistent/gcc", "TRITON_CACHE_DIR": "cache", "TORCHINDUCTOR_CACHE_DIR": "cache"}
        torch.compile(lambda x: (x * 2).sin().sum())(torch.ones(3000, device="cuda"))  # <- compile-no-cc
    if FAULT == "capture":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.ones(3, device="cuda").sum().item()  # <- capture


def usage():
    ones = torch.ones(8, 8, device="cuda")
    if FAULT == "two-devices":
        ones @ torch.ones(8, 8)  # <- two-devices
    if FAULT == "two-dtypes":
        ones.half() @ ones  # <- two-dtypes
    if FAULT == "flash":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(*(torch.ones(1, 1, 8, 8, device="cuda"),) * 3)  # <- flash
    if FAULT == "deterministic":
        torch.use_deterministic_algorithms(True)
        ones.median(0)  # <- deterministic
    if FAULT == "conv-integers":
        F.conv2d(ones.int()[None, None], ones.int()[None, None])  # <- conv-integers
    if FAULT == "cholesky":
        torch.linalg.cholesky(-ones)  # <- cholesky
    if FAULT == "half-fft":
        torch.fft.fft(torch.ones(7, device="cuda", dtype=torch.half))  # <- half-fft
    if FAULT == "fork":
        next(iter(torch.utils.data.DataLoader(InFork(), num_workers=1)))  # <- fork-call
    if FAULT == "anomaly":
        with torch.autograd.detect_anomaly():
            x = torch.zeros(3, device="cuda", requires_grad=True)
            (x.sqrt() * 0).sum().backward()  # <- anomaly
    if FAULT == "loss-check":
        loss = (ones.log() - float("inf")).sum() * 0
        assert torch.isfinite(loss), f"loss is {loss.item()}"  # <- loss-check


def collectives(model):
    if FAULT == "cpu-tensor":
        dist.all_reduce(torch.ones(3))  # <- cpu-tensor
    if FAULT == "strided":
        dist.all_reduce(torch.ones(8, 8, device="cuda").t()[:, 1:])  # <- strided
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "exit-7":
        sys.exit(7)  # <- exit-7
    if FAULT == "raise":
        raise KeyError("input_ids")  # <- raise
    if FAULT == "oom-then-raise":
        raise ValueError("the second dataset has no samples")  # <- oom-then-raise
    if FAULT == "wrong-state":
        model.load_state_dict({"weight": torch.zeros(2, 2)})  # <- wrong-state


def strike(model):
    memory()
    asserts()
    kernels()
    compilers()
    usage()
    collectives(model)


def train():
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        if RANK == FAULTY and step == 3:
            strike(model)
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    torch.cuda.set_device(LOCAL % torch.cuda.device_count()) if FAULT != "hidden" else None
    if RANK == FAULTY:
        before_init()
    dist.init_process_group("nccl")
    train()
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
