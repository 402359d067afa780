"""A trainer with callbacks, as the well-known frameworks have it.

trainer.py FAULT RANK
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FAULT, FAULTY = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
HERE = FAULTY in (RANK, -1)


class Callback:
    def on_setup(self, trainer): ...
    def on_step_end(self, trainer): ...
    def on_epoch_end(self, trainer): ...
    def on_train_end(self, trainer): ...


class EarlyStopping(Callback):
    """Each rank decides by its own loss, which is a mistake."""

    def on_step_end(self, trainer):
        if FAULT == "early-stop" and HERE and trainer.step == 3:
            trainer.stop = True


class Checkpoint(Callback):
    def on_setup(self, trainer):
        if FAULT == "setup" and HERE:
            raise NotImplementedError("this strategy cannot be resumed")  # <- setup

    def on_step_end(self, trainer):
        if FAULT == "step-end" and HERE and trainer.step == 3:
            raise RuntimeError("the metric is not tracked")  # <- step-end

    def on_epoch_end(self, trainer):
        if FAULT == "epoch-end" and HERE:
            torch.save(trainer.model.state_dict(), "/no/such/folder/model.pt")  # <- epoch-end

    def on_train_end(self, trainer):
        if FAULT == "train-end" and HERE:
            raise ConnectionError("the tracker did not answer")  # <- train-end


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.step, self.stop = callbacks, 0, False

    def call(self, hook):
        for callback in self.callbacks:
            getattr(callback, hook)(self)

    def fit(self, epochs=2, steps=5):
        dist.init_process_group("gloo")
        self.call("on_setup")
        self.model = DistributedDataParallel(torch.nn.Linear(8, 2 if FAULT == "model-differs" and HERE else 1))
        optimizer = torch.optim.AdamW(self.model.parameters())
        for _epoch in range(epochs):
            for _ in range(steps):
                self.training_step(optimizer)
                self.call("on_step_end")
                if self.stop:
                    return
            self.call("on_epoch_end")
        self.call("on_train_end")
        gc.collect()  # who still refers to the group then may abort within torch, under torchrun too
        dist.destroy_process_group()

    def training_step(self, optimizer):
        self.step += 1
        if FAULT == "wrong-dtype" and HERE and self.step == 4:
            self.model(torch.zeros(4, 8, dtype=torch.long))  # <- wrong-dtype
        optimizer.zero_grad()
        self.model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


Trainer([EarlyStopping(), Checkpoint()]).fit()
