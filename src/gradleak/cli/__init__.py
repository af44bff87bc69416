"""The command line: parses, calls the API, draws.

app        the commands, and how errors become one line and an exit code
options    every option that several commands have, written once
groups     options in groups: a dataclass that a command takes as one argument
scenario   the groups of options on text, model and client, and the way from them to a scenario
parsing    from an option's text to a value
running    attacks on many batches, group by group
drawing    overview, results and tables, rich on a terminal and plain in a pipe
progress   what is shown while an attack runs
matches    which tokens of a reconstruction are right
plans      what is going to be attacked, and the overview of it
records    the JSON file
words      counts in words
codes      exit codes
attack, capture, demo, invert, listing, study, study_show   one command each
invert_options   the groups of options that `invert train` alone has
study_progress   what is shown while a study runs

Nothing here imports torch when it is imported: `--help` must answer at once.
"""

from gradleak.cli.app import main

__all__ = ["main"]
