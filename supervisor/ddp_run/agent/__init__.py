"""Code that runs inside the agent (`python -m torch.distributed.run`); it may import torch."""
