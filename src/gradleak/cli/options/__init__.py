"""Options of the commands: declared once, gathered in groups, parsed to values."""
