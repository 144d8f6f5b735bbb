"""One member: everything it does between the records, as one state machine made of small ones."""
