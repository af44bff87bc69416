"""gradleak: how much of your clients' text can be read back from the updates they send?"""
