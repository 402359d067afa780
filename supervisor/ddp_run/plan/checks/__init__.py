"""The checks before the start: see `ddp_run.plan.preflight`."""
