"""Triton kernels that do not compile, do not fit, or store where they must not."""

import torch
import triton
import triton.language as tl


@triton.jit
def _wild(out):
    tl.store(out + (1 << 40), 1.0)


@triton.jit
def _large(out, N: tl.constexpr):
    rows = tl.arange(0, N)
    a = tl.load(out + rows[:, None] * N + rows[None, :])
    tl.store(out + rows[:, None] * N + rows[None, :], tl.dot(a, a))


@triton.jit
def _wrong(out):
    tl.store(out, tl.arange(0, 3).sum(axis=5))


def wild():
    _wild[(1,)](torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


def large():
    _large[(1,)](torch.zeros(256, 256, device="cuda"), 256, num_stages=4)


def wrong():
    _wrong[(1,)](torch.zeros(1, device="cuda"))
