"""The command line: parses options, runs what they ask for, and prints the results.

app        the application: commands, one-line errors, exit codes
commands   one module for each command
options    options, groups of options, and their parsers
planning   from options to an attack plan
output     screen, progress displays and JSON files
codes      exit codes

No module here imports torch when it is imported: `--help` must be fast.
"""

from gradleak.cli.app import main

__all__ = ["main"]
