"""What an update reveals without a search: tokens, lengths, labels, row space, defenses; and the proof of a text.

Every attack may use these modules; none of them knows an attack.
"""
