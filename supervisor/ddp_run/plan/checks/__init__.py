"""One file for each check before the start: see `ddp_run.plan.preflight`."""
