"""One file for each scheduler: see `ddp_run.settings.scheduler`."""
