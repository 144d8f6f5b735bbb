"""Wire formats: messages, the manifest and other shared values, each with one canonical encoding in
bytes.

Messages, the manifest, membership, swarm-ids, blob lists, introductions and relay requests, and the
bounds on memory and retries that other peers can cost us. A decoder here returns a value or raises
`ProtocolError`, whatever the input.
"""
