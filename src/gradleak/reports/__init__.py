"""Reports: the record of an audit, and the HTML page that is drawn from it.

words      private text made safe to show: hostile characters, matching words, redaction
record     audit.json: its schema, reading and writing
rounds     rounds.jsonl: what an audit of a running federation appends, and the record made of it
svg        elements, scales and axes of drawings
charts     the drawings: leakage against a strength or a batch size, utility, capacity, rounds over time
page       the HTML page: one file, no script, nothing loaded from anywhere

Nothing here runs an attack or reads a study: other rooms make a record, and `page.draw` shows any record of any kind.
"""
