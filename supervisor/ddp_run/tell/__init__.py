"""What people and programs are told: the console, the verdict's block, its file."""
