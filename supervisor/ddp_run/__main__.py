"""`python -m ddp_run`: the command, if its script isn't on the path."""

from ddp_run.cli import main

if __name__ == "__main__":
    main()
