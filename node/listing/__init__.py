"""The list of public swarms: members publish entries, bootstrap peers keep them, anybody reads them."""
