"""The command line: parses, calls the API, draws.

app        the commands, and how errors become one line and an exit code
options, invert_options    every option, written once
parsing    from an option's text to a value
scenario   from options to target, private text and a scenario
running    attacks on many batches, group by group
drawing    overview, results and tables, rich on a terminal and plain in a pipe
progress   what is shown while an attack runs
matches    which tokens of a reconstruction are right
plans      what is going to be attacked, and the overview of it
records    the JSON file
words      counts in words
attack, capture, demo, invert, listing, study, study_show   one command each
study_progress   what is shown while a study runs

Nothing here imports torch when it is imported: `--help` must answer at once.
"""

from gradleak.cli.app import main

__all__ = ["main"]
