"""From the command line, variables and presets to the options of a launch."""
