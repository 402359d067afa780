"""A user's own layout of log files, an entry point of torchrun.logs_specs: stdout to files, stderr to the console."""

import os

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std


class UsersSpecs(DefaultLogsSpecs):
    def __init__(self, log_dir=None, redirects=Std.NONE, tee=Std.NONE, local_ranks_filter=None):
        super().__init__(os.environ["USERS_LOGS"], Std.OUT, tee, local_ranks_filter)
