"""The program that `ddp-run doctor` has its ranks run: torch and the standard library only."""
