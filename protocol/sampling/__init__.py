"""Assignment of the corpus' samples to members and rounds: a function of state that all members
share."""
