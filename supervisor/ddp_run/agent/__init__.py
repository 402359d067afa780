"""Code that runs inside torch's agent process (`python -m torch.distributed.run`); it may import torch."""
