"""A small DDP training on CPU, as somebody would write it for torchrun: nothing in it knows of ddp-run.

`--fail-at STEP` lets the last rank fail there, with exit code 3.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load_batch(step: int, fail_at: int | None) -> torch.Tensor:
    if step == fail_at and dist.get_rank() == dist.get_world_size() - 1:
        raise OSError(f"shard-{step:04d}.bin: checksum does not match")
    return torch.randn(32, 16)


def train(steps: int, fail_at: int | None) -> None:
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        loss = model(load_batch(step, fail_at)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print("training finished")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fail-at", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(args.steps, args.fail_at)
    except OSError as error:
        raise SystemExit(3) from error
    finally:
        gc.collect()  # a model that still holds gloo's group when Python exits may abort the process within torch
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
