"""Wire formats: messages, the manifest and other shared values, each with one canonical encoding in
bytes.

The package has messages, the manifest, membership, swarm-ids, blob lists, introductions and relay
requests. A decoder here returns a value or raises `ProtocolError`, whatever the input.
"""
