"""System service for a node: started at boot, restarted after a crash, with its log kept."""
