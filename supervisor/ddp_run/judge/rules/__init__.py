"""The catalogue of causes: one file per cause, found by being here (see `ddp_run.judge.diagnose.catalogue`)."""
