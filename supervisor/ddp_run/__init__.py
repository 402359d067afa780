"""Launch, supervise and explain distributed PyTorch jobs. Users rely on the command line and the files."""

__version__ = "0.1.0"
