"""Which sample of the corpus is trained by whom, and when: a function of what all members know."""
