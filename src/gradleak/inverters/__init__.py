"""Inverters, the networks of Learning to Invert: features of a gradient in, tokens out.

`gradleak.inversion` trains them, and the attacks `lti` and `lti-p` read updates with them.

    settings    what a user may choose, declared once for training, files and command line (no torch)
    card        what a saved inverter is for, and how it was trained
    features    from a gradient to the features that an inverter reads
    network     the network
    storage     its files
    selection   which of several inverters fits an update
"""
