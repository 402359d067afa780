"""Code that runs inside the agent (torch.distributed.run); it may import torch."""
