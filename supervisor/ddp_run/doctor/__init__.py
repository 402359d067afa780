"""What `ddp-run doctor` looks at before a job is paid for: checks of this host, and of ranks that it starts."""
