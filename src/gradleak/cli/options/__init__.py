"""Options of the commands.

shared     options that several commands have
scenario   groups of options on text, model and client
attack     the group of options on the attack
inversion  groups of options of `invert train`
groups     how a command takes a group as one argument
parse      from an option's text to a value
"""
