"""Output of the commands.

screen          lines, facts and tables: rich on a terminal, plain in a pipe
safe_console    Rich's console, which prints no control character of a text
live            progress of an attack or of any other computation
study_board     progress of a study
overview        the threat model, the model and the attack, before a run
attack_report   results of an attack
settings_table  the hyperparameters of an attack or another class with settings
highlight       correct tokens in colour
json_file       JSON files
wording         counts in words
"""
