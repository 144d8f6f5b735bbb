"""What members say to each other and what is fixed for a swarm: values, and their one spelling in bytes.

Messages, the manifest, membership, swarm-ids, blob lists, introductions and requests to relays, and what
bounds the memory and the tries that others can cost us. A decoder here returns a value or raises
`ProtocolError`, whatever the input.
"""
