"""`python -m ddp_run`: the command, for where its own script is not on the path."""

from ddp_run.cli import main

if __name__ == "__main__":
    main()
