"""A node as a service of the system: started at boot, started again after a crash, its log kept."""
